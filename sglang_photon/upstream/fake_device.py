"""A device whose memory is files, in place of CUDA's for the code that shares pools.

SGLang's code for pools runs unchanged, in as many processes as a test wants: only PyTorch's open of
a handle, the driver's stream operations and the word "cuda" are replaced. Streams run at once, and
a wait for a word that is not there fails instead of hanging: that is the mistake to be found.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.multimodal.transport import cuda_ipc, memory_pool

HANDLE_BYTES = 64


class HangsError(AssertionError):
    """A wait on the device that nobody may ever end."""


def mapped(path: Path, nbytes: int) -> torch.UntypedStorage:
    """The memory in a file, shared by all who map it."""
    storage = torch.UntypedStorage.from_file(str(path), shared=True, nbytes=nbytes)
    assert isinstance(storage, torch.UntypedStorage)
    return storage


class Memory:
    """A pool as its producer sees it."""

    def __init__(self, path: Path, nbytes: int) -> None:
        path.touch()
        self.path = path
        self.storage = mapped(path, nbytes)

    def handle(self, *, name: bytes | None = None) -> tuple[Any, ...]:
        """As `_share_cuda_` returns it; `name` are the driver's bytes."""
        name = name or str(self.path).encode()
        parts = (len(self.storage), 0, str(self.path).encode(), 0, b"", False)
        return (0, name.ljust(HANDLE_BYTES, b"\0"), *parts)


class OnDevice(torch.Tensor):
    """A tensor in such a pool, which says that it is on a CUDA device."""

    is_cuda = True
    device = torch.device("cuda:0")
    memory: Memory

    @classmethod
    def of(cls, memory: Memory) -> OnDevice:
        plain = torch.empty(0, dtype=torch.uint8).set_(memory.storage)
        made = plain.as_subclass(cls)
        made.memory = memory
        return made

    def untyped_storage(self) -> Any:
        return SimpleNamespace(_share_cuda_=self.memory.handle)


class Event:
    """Passes when its test says so."""

    passed = True

    def record(self, stream: Any = None) -> None:
        """Everything before it has run."""

    def query(self) -> bool:
        return self.passed


class FakeStream:
    """Runs what it is given at once."""

    cuda_stream = 0

    def __init__(self) -> None:
        self.waited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)

    def synchronize(self) -> None:
        """Nothing is ever pending."""


class Cuda:
    """`torch.cuda`, as far as pools use it."""

    OutOfMemoryError = torch.cuda.OutOfMemoryError
    Event = Event

    def __init__(self) -> None:
        self.usual = self.current = FakeStream()

    def Stream(self) -> FakeStream:  # noqa: N802 - the name that torch gives it
        return FakeStream()

    def current_stream(self, device: Any = None) -> FakeStream:
        return self.current

    def current_device(self) -> int:
        return 0

    def device(self, device: Any) -> Any:
        return nullcontext()

    def synchronize(self, device: Any = None) -> None:
        """Nothing is ever pending."""

    def set_device(self, device: Any) -> None:
        """There is one."""

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Torch:
    """The module `torch` for SGLang's pools: what is made on a device is made in a file.

    Args:
        folder: for the files; None where no pool is made.
    """

    def __init__(self, cuda: Cuda, folder: Path | None = None) -> None:
        self.cuda = cuda
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: Any) -> torch.device:
        return torch.device("cpu")

    def tensor(self, data: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
        return torch.tensor(data, dtype=dtype)

    def empty(self, *size: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        if isinstance(device, str) and self._folder is not None:
            return OnDevice.of(Memory(self._folder / uuid.uuid4().hex, *size))
        return torch.empty(*size, dtype=dtype)


def word(address: int) -> ctypes.c_int32:
    return ctypes.c_int32.from_address(address)


def wait_value(device: int, address: int, value: int, transport: str) -> None:
    if word(address).value - value < 0:
        raise HangsError(f"waits for {value} and finds {word(address).value}")


def write_value(device: int, address: int, value: int, transport: str) -> None:
    word(address).value = value


def open_storage(device: int, handle: bytes, nbytes: int, *rest: Any) -> torch.UntypedStorage:
    """In place of `_new_shared_cuda`: the file is named where PyTorch counts references."""
    return mapped(Path(rest[1].decode()), nbytes)


def replace(patch: Any, *, folder: Path | None = None) -> Cuda:
    """Replace CUDA for SGLang's pools; `patch` is `setattr` or what undoes it afterwards."""
    cuda = Cuda()
    for module in (cuda_ipc, memory_pool):
        patch(module, "torch", Torch(cuda, folder))
    patch(memory_pool, "stream_wait_value32", wait_value)
    patch(memory_pool, "stream_write_value32", write_value)
    return cuda
