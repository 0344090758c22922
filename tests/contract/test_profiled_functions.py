"""The functions by which samples are put into phases exist, in SGLang and here."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

import pytest

import sglang_photon
from sglang_photon.profiling.blame import WAITS_HERE
from sglang_photon.profiling.phases import FORWARD, HOT_SPOTS, LOOPS, PHOTON, SGLANG

SPEC = importlib.util.find_spec("sglang")
assert SPEC is not None
assert SPEC.submodule_search_locations is not None
UPSTREAM = Path(next(iter(SPEC.submodule_search_locations))) / "srt"
OURS = Path(sglang_photon.__file__).parent
ELSEWHERE = {"_new_shared_cuda", "recv_pyobj", "loads"}
"""Of torch, zmq and pickle."""


@functools.cache
def functions(file: Path) -> frozenset[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize(("file", "function"), sorted(SGLANG))
def test_sglang_has_the_function(file: str, function: str) -> None:
    assert function in functions(UPSTREAM / file)


@pytest.mark.parametrize(("file", "function"), sorted(PHOTON))
def test_we_have_the_function(file: str, function: str) -> None:
    assert function in functions(OURS / file)


@pytest.mark.parametrize(("file", "function"), sorted(FORWARD | WAITS_HERE))
def test_forwards_and_waits_are_where_they_are_looked_for(file: str, function: str) -> None:
    candidates = [OURS / file, UPSTREAM / file, UPSTREAM / "managers/scheduler_components" / file]
    found = [path for path in candidates if path.exists()]
    assert found, file
    assert any(function in functions(path) for path in found)


def test_hot_spots_and_loops_are_functions_of_somebody() -> None:
    wanted = set().union(*HOT_SPOTS.values()) | LOOPS
    known = set(ELSEWHERE)
    for root in (
        UPSTREAM / "managers",
        UPSTREAM / "multimodal",
        UPSTREAM / "mem_cache",
        UPSTREAM / "constrained",
        UPSTREAM / "sampling",
        OURS / "loop",
    ):
        for file in root.rglob("*.py"):
            known |= functions(file)
    assert wanted <= known
