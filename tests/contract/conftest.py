"""SGLang on a CPU, in this process: some of its modules cannot be imported without stand-ins."""

from __future__ import annotations

import os

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

from sglang_photon import reference

reference.install()
