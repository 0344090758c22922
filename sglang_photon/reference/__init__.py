"""Reference operations: what SGLang needs where its compiled kernels cannot load.

SGLang imports `sgl_kernel` and torchvision in every process, also on a machine on which neither
can be loaded. `install()` puts an import hook in place that stands in for what is missing or
broken, and for nothing else. It acts only where it is wanted: with SGLang's CPU engine
(``SGLANG_USE_CPU_ENGINE=1``), or, on a CUDA machine without the kernel wheel, on the explicit
switch ``SGLANG_PHOTON_REFERENCE_OPS=1``.

Child processes are reached through the folder ``site``: `child_environment` puts it first on
``PYTHONPATH``, and its ``sitecustomize`` calls `install()` while Python starts.

Importing this package, and `install()`, import neither torch nor SGLang.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from sglang_photon.reference.finder import Decisions, ReferenceFinder, gist
from sglang_photon.reference.kernels import PACKAGE, is_stand_in
from sglang_photon.reference.missing import ReferenceOpMissing

__all__ = [
    "InstallReport",
    "Part",
    "ReferenceOpMissing",
    "child_environment",
    "install",
    "status",
    "wanted",
]

CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"
REFERENCE_OPS = "SGLANG_PHOTON_REFERENCE_OPS"
BARE_CUDA = {
    # SGLang insists on the kernel wheel's version before it starts.
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    # Norms, activations and rotary embedding in upstream's own torch code: no nvcc is needed.
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
}
SITE_FOLDER = Path(__file__).parent / "site"


@dataclass(frozen=True)
class Part:
    """One package.

    Attributes:
        choice: ``real``, ``reference``, ``absent`` (nothing stands in), or ``undecided`` (it is
            decided when the package is first imported).
        reason: why, in one line.
    """

    choice: str
    reason: str


@dataclass(frozen=True)
class InstallReport:
    """What stands in for what in this process."""

    wanted: bool
    installed: bool
    kernels: Part
    torchvision: Part


_decisions = Decisions()
_finder = ReferenceFinder(decisions=_decisions)


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether `environ` asks for reference operations where the real ones are missing."""
    return environ.get(CPU_ENGINE) == "1" or environ.get(REFERENCE_OPS) == "1"


def install() -> InstallReport:
    """Puts the import hook in place in this process; idempotent, and cheap.

    Call it before SGLang or torchvision is imported: a torchvision that failed to import stays
    unimported, but an SGLang module that was loaded without kernels keeps its fallbacks.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        if "torch" in sys.modules:
            _finder.after_torch()
    return _report()


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that child processes need, to be laid over `environ`.

    ``PYTHONPATH`` gets the ``site`` folder in front, once. Where the explicit switch is on and the
    kernel wheel is not installed, the variables of `BARE_CUDA` come along, except those that
    `environ` sets already.
    """
    folder = str(SITE_FOLDER)
    rest = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    variables = {"PYTHONPATH": os.pathsep.join([folder, *(p for p in rest if p != folder)])}
    if environ.get(REFERENCE_OPS) == "1" and _finder.real_spec(PACKAGE) is None:
        variables |= {name: value for name, value in BARE_CUDA.items() if name not in environ}
    return variables


def status() -> InstallReport:
    """Decides what is undecided, by importing both packages, and reports (for `photon doctor`).

    Takes seconds, since torch is imported. Where reference operations are wanted they are
    installed first, so that the answer is what a server in this environment would get.
    """
    if wanted(os.environ):
        install()
    for package in (PACKAGE, "torchvision"):
        try:
            import_module(package)
        except (ImportError, OSError, RuntimeError) as error:
            _decisions.set(package, "absent", f"{package} does not load: {gist(error)}")
    return _report()


def _report() -> InstallReport:
    return InstallReport(
        wanted=wanted(os.environ),
        installed=_finder in sys.meta_path,
        kernels=_part(PACKAGE),
        torchvision=_part("torchvision"),
    )


def _part(package: str) -> Part:
    if package in _decisions.choices:
        return Part(*_decisions.choices[package])
    module = sys.modules.get(package)
    if module is not None and not is_stand_in(module):
        return Part("real", f"{package} is loaded")
    if _finder.real_spec(package) is not None:
        return Part("undecided", f"{package} is installed and not imported yet")
    if package == PACKAGE and _finder in sys.meta_path:
        return Part("reference", f"{package} is not installed")
    return Part("absent", f"{package} is not installed")
