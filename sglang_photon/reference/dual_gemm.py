"""SGLang's module of a fused Blackwell kernel, where the package it is written in is missing.

On every CUDA device, the MLP of Qwen2 asks that module whether its kernel fits (it does on
Blackwell only), and to be asked, the module imports `cutlass` (nvidia-cutlass-dsl). Where that
package is not installed, this answers in its place that the kernel does not fit, so that the
ordinary matrix products are used; upstream 0.5.23 reads no other name of the module then.
"""

from __future__ import annotations

import enum
from types import ModuleType
from typing import Any

MODULE = "sglang.kernels.ops.gemm.cutedsl_dual_gemm"
NEEDS = "cutlass"


class DualGemmQuantMode(enum.IntEnum):
    """How the kernel would quantise its result; the names and values are upstream's."""

    STATIC_PER_TENSOR = 0
    STATIC_PER_TOKEN = 1
    DYNAMIC_PER_TENSOR = 2
    DYNAMIC_PER_TOKEN = 3
    UNQUANT = 4


def can_use_dual_gemm(*_args: Any, **_kwargs: Any) -> bool:
    """Never: there is no kernel."""
    return False


def furnish(module: ModuleType) -> None:
    """Give a freshly created module the names that upstream reads."""
    vars(module).update(
        DualGemmQuantMode=DualGemmQuantMode,
        MAX_DUAL_GEMM_DECODE_TOKENS=0,
        can_use_dual_gemm=can_use_dual_gemm,
    )
