"""Part a: which machine this is, and two ceilings of it, measured."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from sglang_photon.bench.gpu.clock import milliseconds
from sglang_photon.bench.gpu.journal import NO_CUDA, Journal
from sglang_photon.bench.gpu.settings import Settings

PART = "a"
PACKAGES = ("torch", "triton", "transformers", "sglang", "sgl-kernel", "flashinfer-python")
QUERY = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit"
COPY_BYTES = 4 << 30
PINNED_BYTES = 1 << 30
MATMUL = 8192


def run(settings: Settings, journal: Journal) -> None:
    """Facts and ceilings."""

    def note(name: str, value: float | int | str | None, unit: str = "", note: str = "") -> None:
        journal.figure(PART, name, value, unit, note)

    note("Python", platform.python_version())
    note("kernel", platform.release())
    note("cores for this process", len(os.sched_getaffinity(0)))
    for package in PACKAGES:
        note(package, _version(package))
    note("CUDA of torch", torch.version.cuda or "none")
    if settings.rehearse:
        for name in ("GPU", "copy bandwidth", "bf16 matrix product"):
            note(name, None, note=NO_CUDA)
        _copy(settings.device, 1 << 22)
        _matmul(settings.device, 128)
        return
    note("GPU", torch.cuda.get_device_name())
    note("nvidia-smi", _nvidia_smi())
    properties = torch.cuda.get_device_properties(0)
    note("multiprocessors", properties.multi_processor_count)
    note("memory", properties.total_memory / 2**30, "GiB")
    how = "bytes read and written"
    note("copy bandwidth, device to device", _copy("cuda", COPY_BYTES) / 1e12, "TB/s", how)
    for name, value in _pinned_rates().items():
        note(name, value / 1e9, "GB/s", "pinned memory")
    note(
        "bf16 matrix product", _matmul("cuda", MATMUL) / 1e12, "TFLOP/s", f"{MATMUL} cubed, random"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _nvidia_smi() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "not found"
    command = [tool, f"--query-gpu={QUERY}", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.strip() or answer.stderr.strip()


def _rate(amount: float, work: Callable[[], object], device: str) -> float:
    return amount / (milliseconds(work, device=device, repeats=10) / 1e3)


def _copy(device: str, nbytes: int) -> float:
    source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _rate(2 * nbytes, lambda: target.copy_(source), device)


def _pinned_rates() -> dict[str, float]:
    host = torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(PINNED_BYTES, dtype=torch.uint8, device="cuda")
    return {
        "copy, host to device": _rate(
            PINNED_BYTES, lambda: device.copy_(host, non_blocking=True), "cuda"
        ),
        "copy, device to host": _rate(
            PINNED_BYTES, lambda: host.copy_(device, non_blocking=True), "cuda"
        ),
    }


def _matmul(device: str, size: int) -> float:
    left = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    right = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(left)
    return _rate(2 * size**3, lambda: torch.mm(left, right, out=out), device)
