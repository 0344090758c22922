"""Run by Python at its start where this folder is on ``PYTHONPATH``: reaches every child process.

Costs two dictionary lookups where reference operations are not wanted. A `sitecustomize` that this
one hides (distributions ship some) is run afterwards, as Python would have done.
"""

# pathlib would cost every process that passes through here milliseconds.
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _install() -> None:
    switches = ("SGLANG_USE_CPU_ENGINE", "SGLANG_PHOTON_REFERENCE_OPS")
    if not any(os.environ.get(name) == "1" for name in switches):
        return
    try:
        from sglang_photon import reference
    except ImportError:  # another Python that inherited our PYTHONPATH
        return
    reference.install()


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_install()
_run_hidden()
