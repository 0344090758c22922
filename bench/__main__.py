"""`python -m sglang_photon.bench NAME`: the benchmarks, one word each."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from sglang_photon import reference
from sglang_photon.errors import PhotonError, UsageError, report

BENCHMARKS = {
    "host": "the scheduler's host time per step, beside SGLang's",
    "loops": "three scheduler loops on one simulated device",
    "batch": "batch jobs: rows per second, device idle, memory, kills",
    "ingest": "requests with pictures beside streaming text, on a simulated device",
    "vlm": "many image chats at once, on a simulated H100 or B200",
    "ipc": "handles of device memory: opened again, kept in a dict, kept in our cache",
    "serve": "stock SGLang and Photon in turn, on your model, over HTTP",
    "gpu": "what only a GPU can answer, in parts",
}
MODULES = {"gpu": "gpu_check"}
"""Where the module is not called as the benchmark is."""

ON_THIS_DEVICE = frozenset({"gpu", "serve"})
"""Benchmarks of the device that is there; the others run SGLang on its CPU engine anywhere."""


def main(argv: Sequence[str]) -> int:
    """Run one benchmark and return its exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: photon bench NAME [arguments]\n")
        for name, meaning in BENCHMARKS.items():
            print(f"  {name:8} {meaning}")
        return 0 if argv else 2
    name, *rest = argv
    try:
        if name not in BENCHMARKS:
            raise UsageError(f"There is no benchmark {name!r}", f"Choose: {', '.join(BENCHMARKS)}")
        if name not in ON_THIS_DEVICE:
            _prepare()
        module = importlib.import_module(f"sglang_photon.bench.{MODULES.get(name, name)}")
        code: int = module.main(rest)
    except PhotonError as error:
        return report(error)
    return code


def _prepare() -> None:
    """SGLang's CPU engine, with reference operations, before SGLang is imported."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    reference.install()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
