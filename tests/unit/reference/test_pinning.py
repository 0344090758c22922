"""Pinned memory: ordinary memory without an accelerator, torch's own answer with one."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from sglang_photon.reference import pinning


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
    like = torch.zeros(2)
    arguments: dict[str, tuple[Any, ...]] = {
        "arange": (3,),
        "empty_like": (like,),
        "empty_strided": ((2, 2), (2, 1)),
        "eye": (2,),
        "full": ((2,), 7),
        "full_like": (like, 7),
        "linspace": (0, 1, 3),
        "ones_like": (like,),
        "randint": (9, (2,)),
        "randperm": (4,),
        "tensor": ([1, 2],),
        "zeros_like": (like,),
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
