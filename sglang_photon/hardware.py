"""Which device serves, and what SGLang needs to hear on a machine without a GPU.

SGLang's defaults suit a GPU: on a CPU it would want AMX kernels, fill 70 % of the memory with a
token pool and spend the first request compiling graphs for half a minute.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_photon.arguments import ArgumentList

CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"
CPU_POOL_TOKENS = 16384
"""Token pool of a CPU server: 0.4 GB for a model of SmolLM2-135M's shape."""


@dataclass(frozen=True)
class CpuPlan:
    """What was chosen for a CPU server, and how to say so.

    Attributes:
        environment: variables to set, for this process and its children.
        chosen: the flags and variables that nobody had given, as they would be typed.
    """

    environment: dict[str, str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()


def accelerator_is_available() -> bool:
    """Whether torch sees a GPU or another accelerator (imports torch)."""
    import torch

    return bool(torch.accelerator.is_available())


def serves_on_cpu(arguments: ArgumentList, environ: Mapping[str, str]) -> bool:
    """Whether this server runs on the CPU: asked for, or nothing else is there."""
    if arguments.has("--device"):
        return arguments.value("--device") == "cpu"
    return environ.get(CPU_ENGINE) == "1" or not accelerator_is_available()


def plan_cpu(arguments: ArgumentList, environ: Mapping[str, str], cores: list[int]) -> CpuPlan:
    """Complete the arguments of a CPU server; what was given stays.

    Args:
        arguments: extended in place.
        environ: the present environment; its variables win.
        cores: core numbers this process may use, ascending.
    """
    chosen = []
    defaults = {
        "--device": "cpu",
        # SGLang's own choice, intel_amx, needs its CPU kernels, which no package here brings.
        "--attention-backend": "torch_native",
        "--max-total-tokens": str(CPU_POOL_TOKENS),
    }
    for flag, value in defaults.items():
        if arguments.add_default(flag, value):
            chosen.append(f"{flag} {value}")
    wanted = {CPU_ENGINE: "1", "TORCHDYNAMO_DISABLE": "1", **_core_binding(arguments, cores)}
    environment = {name: value for name, value in wanted.items() if name not in environ}
    chosen += [f"{name}={value}" for name, value in environment.items()]
    return CpuPlan(environment, tuple(chosen))


def usable_cores() -> list[int]:
    """Core numbers this process may run on, ascending."""
    return sorted(os.sched_getaffinity(0))


def _core_binding(arguments: ArgumentList, cores: list[int]) -> dict[str, str]:
    """Cores for each of several ranks: SGLang asks for one NUMA node per rank otherwise."""
    ranks = arguments.number("--tp-size", "--tp", "--tensor-parallel-size", default=1)
    ranks *= arguments.number("--dp-size", "--dp", "--data-parallel-size", default=1)
    if ranks == 1 or len(cores) < ranks:
        return {}
    share = len(cores) // ranks
    groups = [cores[rank * share : (rank + 1) * share] for rank in range(ranks)]
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, g)) for g in groups)}
