"""SGLang on a CPU, in this process, before any test module imports it."""

from __future__ import annotations

import os

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from sglang_photon import reference

reference.install()
