"""`python -m sglang_photon`: the same as the console script `photon`."""

from __future__ import annotations

import sys

from sglang_photon.cli import main

if __name__ == "__main__":
    sys.exit(main())
