"""The stand-in for SGLang's dual GEMM module."""

from __future__ import annotations

import ast
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest

from sglang_photon.reference import dual_gemm
from sglang_photon.reference.finder import Decisions, ReferenceFinder


@pytest.fixture
def finder() -> ReferenceFinder:
    return ReferenceFinder(decisions=Decisions())


def test_without_its_package_the_kernel_does_not_fit(
    finder: ReferenceFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "real_spec", lambda *_: None)
    spec = finder.find_spec(dual_gemm.MODULE, None)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.can_use_dual_gemm(1, 128, 128, module.DualGemmQuantMode.UNQUANT) is False


def test_with_its_package_the_module_is_upstreams(
    finder: ReferenceFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "real_spec", lambda *_: object())
    assert finder.find_spec(dual_gemm.MODULE, None) is None


def test_upstreams_layer_reads_no_other_name() -> None:
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    tree = ast.parse((folder / "srt/layers/dual_gemm.py").read_text())
    read = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == dual_gemm.MODULE
        for alias in node.names
    }
    answered = {"DualGemmQuantMode", "MAX_DUAL_GEMM_DECODE_TOKENS", "can_use_dual_gemm"}
    assert read == answered
