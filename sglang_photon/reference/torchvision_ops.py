"""The operators torchvision's import asks for, where its compiled library cannot be loaded.

PyPI's torchvision is linked against the CUDA build of torch; beside the CPU build its `_C` library
does not load. torchvision itself copes (`_has_ops()` is then false, and its functions say so when
called), except that it registers shape rules for `nms` and `qnms` without asking first, which
fails on an operator that nobody defined. Defining these two, before torchvision is imported, is
all that is missing: everything SGLang uses of torchvision on a CPU is plain torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any

from sglang_photon.reference.missing import missing

SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def own_ops_load(package_folders: Sequence[str]) -> str | None:
    """Tries to load torchvision's library; None when it works, otherwise why it does not.

    Args:
        package_folders: where the package `torchvision` lies. It is not imported.
    """
    import torch

    spec = PathFinder.find_spec("_C", list(package_folders))
    if spec is None or spec.origin is None:
        return "there is no compiled library"
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        return str(error)
    return None


@functools.cache
def _library() -> Any:
    """The one library handle; torch drops the definitions with it."""
    import torch

    return torch.library.Library("torchvision", "FRAGMENT")


def define_ops() -> None:
    """Defines `torchvision::nms` and `torchvision::qnms`; idempotent."""
    import torch

    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            _library().define(schema)
            _library().impl(name, missing(f"torchvision.ops.{name}"), "CPU")
