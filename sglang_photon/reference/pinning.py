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

FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
)
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


def install(torch: ModuleType) -> None:
    """Wraps torch's factories and `Tensor.pin_memory`; idempotent.

    `Tensor.pin_memory` returns a copy, as it does with a device: the caller may go on writing to
    the original.
    """
    for name in FACTORIES:
        factory = getattr(torch, name)
        if not hasattr(factory, MARK):
            setattr(torch, name, _without_pinning(factory))
    pin = torch.Tensor.pin_memory
    if hasattr(pin, MARK):
        return

    @functools.wraps(pin)
    def pin_memory(self: Any, *args: Any, **kwargs: Any) -> Any:
        return pin(self, *args, **kwargs) if _has_accelerator() else self.clone()

    setattr(pin_memory, MARK, True)
    torch.Tensor.pin_memory = pin_memory
