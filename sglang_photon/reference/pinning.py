"""Requests for pinned memory, answered with ordinary memory where there is no accelerator.

Pinned memory exists to be copied from by a device. Upstream asks for it unconditionally in its
LoRA layers, and torch refuses on a machine that has no device ("Cannot access accelerator device
when none is available"). Ordinary memory has the same contents and lifetime, so it is a correct
answer there. With an accelerator, every request goes to torch unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

FACTORIES = ("arange", "empty", "empty_like", "empty_strided", "full", "tensor", "zeros")
"""Every factory that upstream 0.5.23 asks for pinned memory."""

MARK = "__photon_pinning__"


@functools.cache
def _has_accelerator() -> bool:
    """Asked at the first request for pinned memory, so that importing torch touches no driver."""
    import torch

    return torch.accelerator.is_available()


def _without_pinning(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("pin_memory") and not _has_accelerator():
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    setattr(call, MARK, True)
    return call


def _introduce(name: str, wrapper: Callable[..., Any]) -> None:
    """Makes a wrapper of `torch.NAME` known to what looks functions up: pickle and TorchScript."""
    from torch.jit._builtins import _register_builtin

    wrapper.__module__, wrapper.__qualname__ = "torch", name
    _register_builtin(wrapper, f"aten::{name}")


def _remember_constructors() -> None:
    """Lets torch list its factories while they are its own.

    `with torch.device(...)` acts on the calls it finds in that list, which is made once; inside a
    wrapper it is the real factory that is called.
    """
    from torch.utils._device import _device_constructors

    _device_constructors()


def install(torch: ModuleType) -> None:
    """Wraps torch's factories and `Tensor.pin_memory`; idempotent.

    `Tensor.pin_memory` returns a copy, as it does with a device: the caller may go on writing to
    the original.
    """
    _remember_constructors()
    for name in FACTORIES:
        factory = getattr(torch, name)
        if not hasattr(factory, MARK):
            wrapper = _without_pinning(factory)
            _introduce(name, wrapper)
            setattr(torch, name, wrapper)
    pin = torch.Tensor.pin_memory
    if hasattr(pin, MARK):
        return

    @functools.wraps(pin)
    def pin_memory(self: Any, *args: Any, **kwargs: Any) -> Any:
        return pin(self, *args, **kwargs) if _has_accelerator() else self.clone()

    setattr(pin_memory, MARK, True)
    torch.Tensor.pin_memory = pin_memory
