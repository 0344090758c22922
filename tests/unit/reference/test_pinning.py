"""Pinned memory: ordinary memory without an accelerator, torch's own answer with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sglang_photon.reference import pinning

PROBE = """
import pickle
import torch
from sglang_photon.reference import pinning

pinning.install(torch)

@torch.jit.script
def scripted(x: torch.Tensor):
    return torch.zeros(3) + x + torch.arange(3) + torch.empty_like(x).zero_()

@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    return torch.zeros(3) + x + torch.arange(3) + torch.empty_like(x).zero_()

for function in (scripted, compiled):
    assert function(torch.ones(3)).tolist() == [1.0, 2.0, 3.0]
assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros
with torch.device("meta"):
    made = [torch.empty(2), torch.tensor([1]), torch.zeros_like(torch.ones(2)), torch.arange(2)]
assert all(tensor.is_meta for tensor in made)
torch.set_default_dtype(torch.bfloat16)
assert torch.full((1,), 1.0).dtype == torch.bfloat16
"""


class Pinned(torch.Tensor):
    """Stands for torch's own `Tensor`, so that the real one is not touched."""

    def pin_memory(self, *args: Any) -> Any:
        return "pinned by torch"


@pytest.fixture
def fake_torch() -> ModuleType:
    module = ModuleType("torch")
    for name in pinning.FACTORIES:
        setattr(module, name, getattr(torch, name))
    module.Tensor = Pinned  # type: ignore[attr-defined]
    pinning.install(module)
    return module


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(pinning, "_has_accelerator", lambda: request.param)


@pytest.mark.parametrize("accelerator", [False], indirect=True)
def test_every_factory_gives_ordinary_memory(accelerator: None, fake_torch: Any) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "arange": (3,),
        "empty_like": (torch.ones(2),),
        "empty_strided": ((2, 2), (2, 1)),
        "full": ((2,), 7),
        "tensor": ([1, 2],),
    }
    for name in pinning.FACTORIES:
        made = getattr(fake_torch, name)(*arguments.get(name, (2, 2)), pin_memory=True)
        assert isinstance(made, torch.Tensor)
        assert not made.is_pinned()
    assert fake_torch.tensor([1, 2], dtype=torch.int32, pin_memory=True).tolist() == [1, 2]


@pytest.mark.parametrize("accelerator", [False], indirect=True)
def test_pin_memory_copies(accelerator: None, fake_torch: Any) -> None:
    original = torch.ones(3).as_subclass(Pinned)
    copy = original.pin_memory()
    original.zero_()
    assert copy.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("accelerator", [True], indirect=True)
def test_with_an_accelerator_torch_answers(
    accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    module = ModuleType("torch")
    for name in pinning.FACTORIES:
        setattr(module, name, lambda *_, **keywords: seen.append(keywords))
    module.Tensor = Pinned  # type: ignore[attr-defined]
    pinning.install(module)
    module.empty(2, pin_memory=True)
    assert seen == [{"pin_memory": True}]
    assert torch.ones(1).as_subclass(Pinned).pin_memory() == "pinned by torch"


def test_installing_twice_wraps_once(fake_torch: Any) -> None:
    before = fake_torch.empty, fake_torch.Tensor.pin_memory
    pinning.install(fake_torch)
    assert (fake_torch.empty, fake_torch.Tensor.pin_memory) == before


def test_the_rest_of_torch_does_not_notice(tmp_path: Path) -> None:
    """Scripts, compiled functions, pickles and device contexts work through the wrappers."""
    script = tmp_path / "probe.py"
    script.write_text(PROBE)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
