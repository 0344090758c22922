"""The import hook: decides, at the first import of each package, between the real thing and ours.

    import torch        -> real; then pinning, and the op names where sgl_kernel is not installed
    import torchvision  -> its library loads?  nothing to do : define nms and qnms, then real
    import sgl_kernel   -> installed and loads?  real : stand-in
    import the module of SGLang's dual GEMM kernel -> cutlass installed?  real : stand-in

Deciding at import time keeps `install()` cheap: a process that imports none of them pays for
one set lookup per import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from sglang_photon.reference import dual_gemm, kernels, pinning, torchvision_ops


@dataclass
class Decisions:
    """What was decided so far, by package: the choice and the reason. Written by the hook."""

    choices: dict[str, tuple[str, str]] = field(default_factory=dict)

    def set(self, package: str, choice: str, reason: str) -> None:
        """Records a decision; a later one replaces it."""
        self.choices[package] = (choice, reason)


def _nothing() -> None:
    """Runs before or after a module's execution where there is nothing to do."""


class _AroundLoader(Loader):
    """Executes a real module with something done before and after it."""

    def __init__(
        self,
        *,
        real: Loader,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        self.real = real
        self.before = before
        self.after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        _restore_loader(module, self.real)
        self.before()
        self.real.exec_module(module)
        self.after()


def _restore_loader(module: ModuleType, real: Loader) -> None:
    """Tools that read sources and resources through a module's loader must see the real one."""
    module.__loader__ = real
    if module.__spec__ is not None:
        module.__spec__.loader = real


def gist(error: BaseException) -> str:
    """One line of an error message: the one that names a library, otherwise the first.

    `sgl_kernel` explains over twenty lines that one shared library is missing.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "cannot open shared object file" in line]
    return (telling or lines or [type(error).__name__])[0]


class _KernelLoader(Loader):
    """Executes the real `sgl_kernel`; where that fails, or there is none, furnishes a stand-in."""

    def __init__(self, *, real: Loader | None, decisions: Decisions) -> None:
        self.real = real
        self.decisions = decisions

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec) if self.real else None

    def exec_module(self, module: ModuleType) -> None:
        if self.real is None:
            self._stand_in(module, "sgl_kernel is not installed")
            return
        _restore_loader(module, self.real)
        try:
            self.real.exec_module(module)
        except (ImportError, OSError) as error:
            self._stand_in(module, f"sgl_kernel is installed but does not load: {gist(error)}")
        else:
            self.decisions.set(kernels.PACKAGE, "real", "sgl_kernel loads")

    def _stand_in(self, module: ModuleType, reason: str) -> None:
        kernels.furnish(module)
        kernels.define_ops()
        self.decisions.set(kernels.PACKAGE, "reference", reason)


class _StandInLoader(Loader):
    """Makes a module of ours: a submodule of the stand-in, by default."""

    def __init__(self, furnish: Callable[[ModuleType], None] = kernels.furnish) -> None:
        self.furnish = furnish

    def create_module(self, spec: ModuleSpec) -> None:  # noqa: ARG002
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.furnish(module)


class ReferenceFinder(MetaPathFinder):
    """Stands first on `sys.meta_path` and asks the finders behind it for the real modules."""

    def __init__(self, *, decisions: Decisions) -> None:
        self.decisions = decisions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answers for the packages above and the stand-in's submodules; None for all others."""
        if fullname == "torch":
            return self._around(fullname, path, target, after=self.after_torch)
        if fullname == "torchvision":
            return self._torchvision(path, target)
        if fullname == kernels.PACKAGE:
            return self._kernels(path, target)
        if fullname == dual_gemm.MODULE and self.real_spec(dual_gemm.NEEDS) is None:
            return ModuleSpec(fullname, _StandInLoader(dual_gemm.furnish))
        parent, _, name = fullname.rpartition(".")
        if parent == kernels.PACKAGE and kernels.is_stand_in(sys.modules.get(parent)):
            return ModuleSpec(fullname, _StandInLoader()) if name in kernels.SUBMODULES else None
        return None

    def real_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the finders behind this one give, None where the package is absent.

        A folder of that name without code in it (a namespace package) is not the package.
        """
        for finder in sys.meta_path:
            if isinstance(finder, ReferenceFinder):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.origin is not None:
                return spec
        return None

    def after_torch(self) -> None:
        """What follows from torch being there: pinning, and op names if no kernels will come."""
        pinning.install(sys.modules["torch"])
        if self.real_spec(kernels.PACKAGE) is None:
            kernels.define_ops()

    def before_torchvision(self, folders: Sequence[str]) -> None:
        """Decides about torchvision's operators; imports torch."""
        trouble = torchvision_ops.own_ops_load(folders)
        if trouble is None:
            self.decisions.set("torchvision", "real", "torchvision's own operators load")
            return
        torchvision_ops.define_ops()
        self.decisions.set(
            "torchvision", "reference", f"torchvision's own operators do not load: {trouble}"
        )

    def _around(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> ModuleSpec | None:
        spec = self.real_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AroundLoader(real=spec.loader, before=before, after=after)
        return spec

    def _torchvision(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        spec = self._around(
            "torchvision", path, target, before=lambda: self.before_torchvision(folders)
        )
        folders = list(spec.submodule_search_locations or []) if spec is not None else []
        return spec

    def _kernels(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec:
        spec = self.real_spec(kernels.PACKAGE, path, target)
        if spec is None:
            spec = ModuleSpec(kernels.PACKAGE, None, is_package=True)
        spec.loader = _KernelLoader(real=spec.loader, decisions=self.decisions)
        return spec
