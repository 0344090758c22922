"""SGLang on a CPU, in this process, before any test module imports it."""

from __future__ import annotations

import gc
import os

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from sglang_photon import reference

reference.install()


# What has been imported by now stays: full collections in the middle of tests take a second each.
import sglang.srt.managers.scheduler  # noqa: E402, F401

gc.freeze()
