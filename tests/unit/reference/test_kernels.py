"""The stand-in for `sgl_kernel`: when it acts, and what it answers."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_photon import reference
from sglang_photon.errors import PhotonError
from sglang_photon.reference import kernels, ops
from sglang_photon.reference.finder import Decisions, ReferenceFinder
from sglang_photon.reference.missing import ReferenceOpMissing


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decisions]:
    """A finder of our own in front, no `sgl_kernel` imported; everything is put back."""
    before = {name: module for name, module in sys.modules.items() if _is_kernel(name)}
    for name in before:
        del sys.modules[name]
    made = Decisions()
    monkeypatch.setattr(sys, "meta_path", [ReferenceFinder(decisions=made), *sys.meta_path])
    yield made
    for name in [name for name in sys.modules if _is_kernel(name)]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def absent(decisions: Decisions, monkeypatch: pytest.MonkeyPatch) -> Decisions:
    """As on a machine where `sgl_kernel` is not installed."""
    finder = sys.meta_path[0]
    assert isinstance(finder, ReferenceFinder)
    monkeypatch.setattr(finder, "real_spec", lambda *_: None)
    return decisions


def _is_kernel(name: str) -> bool:
    return name.partition(".")[0] == kernels.PACKAGE


def run(statements: str) -> dict[str, Any]:
    """The names that import statements bind; a checker of types need not know the package."""
    names: dict[str, Any] = {}
    exec(statements, names)
    return names


def write_package(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / kernels.PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text(source)
    (package / "allreduce.py").write_text("ORIGIN = 'real'\n")
    monkeypatch.syspath_prepend(folder)


def test_absent_package_gets_a_stand_in(absent: Decisions) -> None:
    found = run(
        "from sgl_kernel import moe_sum, rmsnorm, silu_and_mul\n"
        "from sgl_kernel.flash_attn import flash_attn_varlen_func\n"
        "from sgl_kernel.utils import is_arch_support_pdl\n"
    )
    assert found["rmsnorm"] is ops.rmsnorm
    assert found["silu_and_mul"] is ops.silu_and_mul
    assert found["is_arch_support_pdl"]() is False
    assert absent.choices[kernels.PACKAGE] == ("reference", "sgl_kernel is not installed")
    with pytest.raises(ReferenceOpMissing) as caught:
        found["moe_sum"](torch.zeros(1), out=None)
    assert caught.value.operation == "sgl_kernel.moe_sum"
    with pytest.raises(ReferenceOpMissing, match=r"sgl_kernel\.flash_attn\.flash_attn_varlen_func"):
        found["flash_attn_varlen_func"]()


def test_submodules_are_modules(absent: Decisions) -> None:
    package = importlib.import_module(kernels.PACKAGE)
    for name in kernels.SUBMODULES:
        assert getattr(package, name) is importlib.import_module(f"{kernels.PACKAGE}.{name}")
    assert package.spatial.anything is package.spatial.anything


@pytest.mark.parametrize("full", sorted(kernels.WITHHELD))
def test_withheld_names_raise_import_error(absent: Decisions, full: str) -> None:
    parent, _, name = full.rpartition(".")
    with pytest.raises(ImportError):
        run(f"from {parent} import {name}")
    assert not hasattr(importlib.import_module(parent), name)


def test_private_names_are_not_invented(absent: Decisions) -> None:
    package = importlib.import_module(kernels.PACKAGE)
    assert not hasattr(package, "__version__")
    assert not hasattr(package, "_anything")


@pytest.mark.parametrize("error", ["ImportError", "OSError", "ModuleNotFoundError"])
def test_broken_package_gets_a_stand_in(
    decisions: Decisions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    message = "\\nnothing works\\nlibcuda.so.1: cannot open shared object file\\nmore\\n"
    source = f"from sgl_kernel import allreduce\nrmsnorm = 1\nraise {error}('{message}')\n"
    write_package(tmp_path, source, monkeypatch)
    assert run("from sgl_kernel import rmsnorm")["rmsnorm"] is ops.rmsnorm
    choice, reason = decisions.choices[kernels.PACKAGE]
    assert choice == "reference"
    assert reason.endswith("does not load: libcuda.so.1: cannot open shared object file")
    with pytest.raises(ImportError):
        run("import sgl_kernel.allreduce")


def test_working_package_is_left_alone(
    decisions: Decisions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "rmsnorm = 'real'\n", monkeypatch)
    package = importlib.import_module(kernels.PACKAGE)
    assert package.rmsnorm == "real"
    assert importlib.import_module("sgl_kernel.allreduce").ORIGIN == "real"
    assert decisions.choices[kernels.PACKAGE][0] == "real"
    assert not kernels.is_stand_in(package)
    assert type(package.__loader__).__module__.startswith(("importlib", "_frozen"))
    with pytest.raises(ImportError):
        run("from sgl_kernel import moe_sum")


def test_other_errors_of_the_package_are_not_hidden(
    decisions: Decisions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "raise ValueError('a bug')\n", monkeypatch)
    with pytest.raises(ValueError, match="a bug"):
        run("import sgl_kernel")


def test_a_folder_of_that_name_is_not_the_package(
    decisions: Decisions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / kernels.PACKAGE).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    finder = sys.meta_path[0]
    assert isinstance(finder, ReferenceFinder)
    assert finder.real_spec(kernels.PACKAGE) is None


def test_ops_read_at_import_exist_and_probes_fail(absent: Decisions) -> None:
    importlib.import_module(kernels.PACKAGE)
    for name in kernels.OPS_READ_AT_IMPORT:
        with pytest.raises(ReferenceOpMissing, match=rf"torch\.ops\.sgl_kernel\.{name}"):
            getattr(torch.ops.sgl_kernel, name)(torch.zeros(1), eps=1e-6)
    for probe in ("convert_weight_packed", "fused_qk_norm_cpu", "shm_group_initialize"):
        assert not hasattr(torch.ops.sgl_kernel, probe)


def test_bind_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *args: seen.append(args), raising=False)
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    assert kernels.bind_threads([3, 1]) == "bound to cores [1, 3]"
    assert seen == [(0, [3, 1]), 2]


def test_the_error_is_typed_names_the_remedy_and_travels() -> None:
    assert issubclass(ReferenceOpMissing, PhotonError)
    assert issubclass(ReferenceOpMissing, NotImplementedError)
    error: ReferenceOpMissing = pickle.loads(pickle.dumps(ReferenceOpMissing("sgl_kernel.moe_sum")))
    assert error.operation == "sgl_kernel.moe_sum"
    assert "sgl_kernel.moe_sum has no reference implementation" in str(error)
    assert "pip install sglang-photon" in str(error)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"SGLANG_USE_CPU_ENGINE": "1"}, True),
        ({"SGLANG_USE_CPU_ENGINE": "0"}, False),
        ({"SGLANG_PHOTON_REFERENCE_OPS": "1"}, True),
    ],
)
def test_wanted(environ: dict[str, str], expected: bool) -> None:
    assert reference.wanted(environ) is expected


def test_child_environment_puts_the_folder_first_once() -> None:
    folder = str(reference.SITE_FOLDER)
    assert reference.child_environment({}) == {"PYTHONPATH": folder}
    path = os.pathsep.join(["/a", folder, "", "/b", folder])
    assert reference.child_environment({"PYTHONPATH": path})["PYTHONPATH"] == os.pathsep.join(
        [folder, "/a", "/b"]
    )


def test_child_environment_of_a_bare_cuda_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference._finder, "real_spec", lambda *_: None)
    environ = {"SGLANG_PHOTON_REFERENCE_OPS": "1", "SGLANG_FORCE_FUSED_OP_BACKEND": "triton"}
    variables = reference.child_environment(environ)
    assert variables["SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"] == "1"
    assert "SGLANG_FORCE_FUSED_OP_BACKEND" not in variables
    monkeypatch.setattr(reference._finder, "real_spec", lambda *_: object())
    assert list(reference.child_environment(environ)) == ["PYTHONPATH"]
