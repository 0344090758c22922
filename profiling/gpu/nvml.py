"""NVML: what every NVIDIA driver tells, which is less than DCGM does."""

from __future__ import annotations

import importlib
import time
from typing import Any

from sglang_photon.profiling.gpu.readings import Readings, Sample

ONLY_NVML = (
    "NVML has no SM, tensor or memory activity: install DCGM, or start its exporter, for those"
)


def read_nvml(*, seconds: float, every_s: float, module: Any = None) -> tuple[Readings, float]:
    """Look at all GPUs for a while.

    Args:
        seconds: for how long.
        every_s: how often.
        module: `pynvml`, or something with its functions.

    Returns:
        The readings, and the lowest power limit in W; not a number where there is none.
    """
    found = Readings(source="NVML", why_missing=[ONLY_NVML])
    nvml = module or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        found.why_missing = [f"there is no NVIDIA GPU or driver here ({error})"]
        return found, float("nan")
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        limits = [_try(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle) for handle in handles]
        end = time.monotonic() + seconds
        while True:
            for index, handle in enumerate(handles):
                found.samples.append(Sample(gpu=str(index), values=_values(nvml, handle)))
            if time.monotonic() >= end or not handles:
                break
            time.sleep(every_s)
    finally:
        nvml.nvmlShutdown()
    known = [limit / 1e3 for limit in limits if limit is not None]
    return found.check(), min(known, default=float("nan"))


def _values(nvml: Any, handle: Any) -> dict[str, float]:
    utilization = _try(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    power = _try(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    clock = _try(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
    found: dict[str, float | None] = {
        "util": None if utilization is None else utilization.gpu / 100,
        "power": None if power is None else power / 1e3,
        "clock": clock,
    }
    return {key: float(value) for key, value in found.items() if value is not None}


def _try(nvml: Any, function: Any, *args: Any) -> Any:
    """A value that this GPU may not have."""
    try:
        return function(*args)
    except nvml.NVMLError:
        return None
