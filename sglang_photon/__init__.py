"""sglang-photon: SGLang 0.5.23 with a scheduler that keeps two decode slots in flight.

Importing this package imports neither torch nor sglang.
"""

from __future__ import annotations

__version__ = "0.1.0"
