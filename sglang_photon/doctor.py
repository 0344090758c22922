"""`photon doctor`: whether this machine and this installation can serve, one line per question.

Each check looks at one thing and says what it found; a problem comes with its remedy. Only
problems that keep a server from starting make the exit code 1: without ptrace, for example, one
can serve but not profile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from sglang_photon.config import SWITCH, PhotonConfig, truth
from sglang_photon.errors import PhotonError, UsageError, report
from sglang_photon.upstream.discovery import check_plugin_is_found
from sglang_photon.upstream.version import check_version

MIN_PYTHON = (3, 11)
MIN_SHM_BYTES = 1 << 30
"""Room in /dev/shm for about forty 1024x1024 images (23 MB each) on their way to the scheduler."""
CAP_SYS_PTRACE = 19
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")

POOL_SETTING, DEFAULT_POOL_MB = "SGLANG_MM_FEATURE_CACHE_MB", "1024"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check saw.

    Attributes:
        name: what was looked at.
        ok: False is a problem.
        detail: what was found.
        remedy: what to do about a problem, else empty.
        stops_serving: a server cannot start with this problem.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    stops_serving: bool = False


def main(argv: Sequence[str]) -> int:
    """Print the findings; returns 1 where one of them stops serving."""
    parser = argparse.ArgumentParser(prog="photon doctor", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(argv)
    try:
        findings = [_guarded(check) for check in CHECKS]
    except UsageError as error:
        return report(error)
    stopped = any(finding.stops_serving for finding in findings)
    if options.json:
        print(
            json.dumps({"serves": not stopped, "checks": [asdict(f) for f in findings]}, indent=2)
        )
    else:
        print("\n".join(_lines(findings)))
    return 1 if stopped else 0


def check_python() -> Finding:
    """The interpreter's version."""
    version = platform.python_version()
    if sys.version_info[:2] >= MIN_PYTHON:
        return Finding(name="Python", ok=True, detail=version)
    wanted = ".".join(map(str, MIN_PYTHON))
    return Finding(
        name="Python",
        ok=False,
        detail=version,
        remedy=f"use Python {wanted} or later",
        stops_serving=True,
    )


def check_torch() -> Finding:
    """Whether torch can be imported, and for which device it was built."""
    try:
        import torch
    except ImportError as error:
        return Finding(
            name="torch",
            ok=False,
            detail=f"cannot be imported ({error})",
            remedy="run pip install . again in a fresh environment",
            stops_serving=True,
        )
    build = torch.version.cuda or torch.version.hip
    return Finding(
        name="torch", ok=True, detail=f"{torch.__version__} ({'GPU' if build else 'CPU'} build)"
    )


def check_gpu() -> Finding:
    """The GPU and its driver; none is not a problem, a GPU that torch cannot use is."""
    listed = _nvidia_smi()
    if _accelerator():
        return Finding(name="GPU", ok=True, detail=listed or "an accelerator that torch can use")
    if listed:
        return Finding(
            name="GPU",
            ok=False,
            detail=f"{listed}, but torch cannot use it",
            remedy="install a torch build for this driver (pip install . in a fresh environment)",
        )
    return Finding(name="GPU", ok=True, detail="none: servers run on the CPU")


def check_sglang() -> Finding:
    """The SGLang release, and whether its internals are the ones that Photon is built for."""
    try:
        config = PhotonConfig.from_environment(os.environ)
        version = check_version(allow_other=config.allow_version)
        _bring_up_reference()
        from sglang_photon.upstream.signatures import ALL, check_signatures

        check_signatures(ALL)
    except PhotonError as error:
        return _failed("SGLang", error.problem, error.remedy)
    except (ImportError, OSError) as error:
        return _failed("SGLang", f"cannot be imported ({error})", "see the lines above and below")
    return Finding(name="SGLang", ok=True, detail=f"{version}, all seams in place")


def check_kernels() -> Finding:
    """Whether SGLang's compiled kernels and torchvision load, or plain torch stands in for them."""
    from sglang_photon import reference

    state = reference.status()
    parts = {"sgl_kernel": state.kernels, "torchvision": state.torchvision}
    detail = "; ".join(f"{name} {part.choice} ({part.reason})" for name, part in parts.items())
    if any(part.choice == "absent" for part in parts.values()):
        return _failed("kernels", detail, "run pip install . in a fresh environment")
    return Finding(name="kernels", ok=True, detail=detail)


def check_plugin() -> Finding:
    """Whether SGLang would find the plugin, and whether it is switched on here."""
    try:
        check_plugin_is_found(os.environ)
    except PhotonError as error:
        return _failed("plugin", error.problem, error.remedy)
    switched = truth(os.environ, SWITCH)
    detail = (
        f"installed; on for every sglang command ({SWITCH}=1)"
        if switched
        else f"installed; off for plain sglang commands ({SWITCH}=1 turns it on)"
    )
    return Finding(name="plugin", ok=True, detail=detail)


def check_ptrace() -> Finding:
    """Whether py-spy may attach to a running server."""
    try:
        spy = f"py-spy {metadata.version('py-spy')}"
    except metadata.PackageNotFoundError:
        return Finding(
            name="profiling", ok=False, detail="no py-spy", remedy="run pip install py-spy"
        )
    scope = YAMA.read_text().strip() if YAMA.exists() else "0"
    if _may_ptrace() or scope == "0":
        return Finding(name="profiling", ok=True, detail=f"{spy} may attach to running servers")
    return Finding(
        name="profiling",
        ok=False,
        detail=f"{spy} may not attach (kernel.yama.ptrace_scope is {scope})",
        remedy="run as root, or sysctl kernel.yama.ptrace_scope=0, "
        "or start the container with --cap-add SYS_PTRACE",
    )


def check_shared_memory() -> Finding:
    """Room in /dev/shm, through which image tensors travel to the scheduler."""
    size = shutil.disk_usage("/dev/shm").total
    detail = f"{size / (1 << 30):.1f} GiB in /dev/shm"
    if size >= MIN_SHM_BYTES:
        return Finding(name="shared memory", ok=True, detail=detail)
    return Finding(
        name="shared memory",
        ok=False,
        detail=detail,
        remedy="start the container with --shm-size 8g or --ipc=host",
    )


def check_images() -> Finding:
    """Which way pictures go to the scheduler, if nobody says --mm-feature-transport."""
    import torch

    if _accelerator() and torch.version.cuda:
        pool = os.environ.get(POOL_SETTING) or DEFAULT_POOL_MB
        detail = f"cuda_ipc, {pool} MiB of GPU memory ({POOL_SETTING}); cpu opts out"
    else:
        detail = "cpu: through shared memory"
    return Finding(name="images", ok=True, detail=f"--mm-feature-transport {detail}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_torch,
    check_gpu,
    check_sglang,
    check_kernels,
    check_plugin,
    check_ptrace,
    check_shared_memory,
    check_images,
)


def _guarded(check: Callable[[], Finding]) -> Finding:
    """A check that fails in an unforeseen way is a finding like any other."""
    try:
        return check()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001
        name = check.__name__.removeprefix("check_").replace("_", " ")
        problem = f"cannot be checked ({type(error).__name__}: {error})"
        return _failed(name, problem, "run pip install . in a fresh environment")


def _failed(name: str, detail: str, remedy: str) -> Finding:
    return Finding(name=name, ok=False, detail=detail, remedy=remedy, stops_serving=True)


def _lines(findings: Iterable[Finding]) -> Iterable[str]:
    for finding in findings:
        state = "ok     " if finding.ok else "PROBLEM"
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        yield f"{state}  {finding.name:<14} {finding.detail}{remedy}"


def _accelerator() -> bool:
    from sglang_photon.hardware import accelerator_is_available

    try:
        return accelerator_is_available()
    except ImportError:
        return False


def _bring_up_reference() -> None:
    """Import SGLang under the same conditions as a server on this machine."""
    from sglang_photon import reference
    from sglang_photon.hardware import CPU_ENGINE

    if not _accelerator():
        os.environ.setdefault(CPU_ENGINE, "1")
    if reference.wanted(os.environ):
        reference.install()


def _nvidia_smi() -> str:
    """Names and driver of the NVIDIA GPUs, or an empty string."""
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    return "; ".join(answer.stdout.strip().splitlines()) if answer.returncode == 0 else ""


def _may_ptrace() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> CAP_SYS_PTRACE & 1)
