"""A stand-in for the package `sgl_kernel`, used where it is absent or its libraries cannot load.

SGLang reads kernels in two ways: as names of `sgl_kernel` and its submodules, and as
`torch.ops.sgl_kernel.NAME`. Both must exist when a model module is imported, or SGLang logs
"Ignore import error" and forgets the model. The stand-in answers every name:

* with plain torch where `reference.ops` has it;
* with nothing (`ImportError`, as upstream's own `try` blocks expect) where upstream has a
  fallback that is right without the kernel: `WITHHELD`;
* otherwise with a function that raises `ReferenceOpMissing` when it is called.

`torch.ops.sgl_kernel` is answered more strictly, because upstream probes it with `hasattr` to
choose kernels (`convert_weight_packed` for AMX, `fused_qk_norm_cpu`, `shm_group_initialize`):
only `OPS_READ_AT_IMPORT`, which upstream 0.5.23 reads while a module is loaded, and `HOST_OPS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from sglang_photon.reference.missing import missing

PACKAGE = "sgl_kernel"

SUBMODULES = frozenset(
    {
        "elementwise",
        "flash_attn",
        "kvcacheio",
        "mamba",
        "quantization",
        "spatial",
        "speculative",
        "top_k",
        "utils",
    }
)

WITHHELD = {
    "sgl_kernel.allreduce": "all-reduce then goes through torch.distributed",
    "sgl_kernel.awq_dequantize": "the AWQ kernels then say that they are unavailable",
    "sgl_kernel.fused_qk_rope_with_cos_sin_cache_inplace": "the generic rotary embedding is used",
    "sgl_kernel.kvcacheio.get_device_accessible_ptr": "host addresses are used as they are",
    "sgl_kernel.metal": "Apple's kernels belong to another backend",
    "sgl_kernel.multimodal_rotary_embedding": "the generic M-RoPE is used",
    "sgl_kernel.scalar_type": "upstream brings its own stand-in for the type",
    "sgl_kernel.transfer_cache_dsv4_mla": "upstream brings its own error for it",
    "sgl_kernel.tree_speculative_sampling_target_only": "greedy verification is used",
}

OPS_READ_AT_IMPORT = (
    "fused_dual_residual_rmsnorm_cpu",
    "fused_gdn_gating_cpu",
    "fused_moe_router_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
    "fused_sigmoid_mul_cpu",
    "rmsnorm_cpu",
)


class KernelModule(ModuleType):
    """`sgl_kernel` or one of its submodules; see the module's docstring for what it answers."""

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if name.startswith("_") or full in WITHHELD:
            raise AttributeError(f"{full} has no stand-in, so that upstream's fallback is used")
        if self.__name__ == PACKAGE and name in SUBMODULES:
            return import_module(full)
        from sglang_photon.reference import ops

        value = ops.KERNELS.get(name) or missing(full)
        setattr(self, name, value)
        return value


def furnish(module: ModuleType) -> None:
    """Turns a freshly created, or half imported, module into a stand-in."""
    for key in [key for key in vars(module) if not key.startswith("__")]:
        delattr(module, key)
    module.__class__ = KernelModule
    module.__doc__ = "Stand-in of sglang-photon for a package that cannot be loaded here."
    if module.__name__ == PACKAGE:
        module.__path__ = []
        for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
            del sys.modules[name]


def is_stand_in(module: ModuleType | None) -> bool:
    """Whether `module` (from `sys.modules`) is ours."""
    return isinstance(module, KernelModule)


def bind_threads(cpu_ids: Sequence[int]) -> str:
    """Binds this process to `cpu_ids`, one torch thread each; returns what was done.

    Stands in for `init_cpu_threads_env`, which upstream calls on every arm64 machine.
    """
    import torch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpu_ids)
    torch.set_num_threads(len(cpu_ids))
    return f"bound to cores {sorted(cpu_ids)}"


def initialize_ranks(size: int, rank: int) -> None:
    """Stands in for the set-up of shared-memory collectives, of which there are none here."""


HOST_OPS = {"init_cpu_threads_env": bind_threads, "initialize": initialize_ranks}


def define_ops() -> None:
    """Answers `torch.ops.sgl_kernel.NAME` for the names above; idempotent.

    The names are attributes of the namespace, not entries of torch's dispatcher: no schema has to
    be guessed, and `ReferenceOpMissing` reaches the caller whatever the arguments.
    """
    import torch

    namespace = torch.ops.sgl_kernel
    for name in OPS_READ_AT_IMPORT:
        if not hasattr(namespace, name):
            setattr(namespace, name, missing(f"torch.ops.{PACKAGE}.{name}"))
    for name, function in HOST_OPS.items():
        if not hasattr(namespace, name):
            setattr(namespace, name, function)
