"""Stand-ins shared by tests. One of each kind, simple enough to be read at a glance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FakeStream:
    """A stream that remembers what it was told to wait for."""

    def __init__(self, module: FakeCuda) -> None:
        self._module = module
        self.waits: list[FakeStream] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.waits.append(other)

    def synchronize(self) -> None:
        self._module.synchronized.append("stream")


class FakeEvent:
    """An event that has always passed; its moment is the fake device's time when recorded."""

    def __init__(self, module: FakeCuda) -> None:
        self._module = module
        self.moment_ms = 0.0

    def record(self, stream: FakeStream) -> None:
        """Kernels of the fake run at once."""
        self.moment_ms = self._module.now_ms

    def elapsed_time(self, later: FakeEvent) -> float:
        return later.moment_ms - self.moment_ms

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._module.synchronized.append("event")


class FakeCuda:
    """The names of `torch.cuda` that a lane uses; kernels are words, recorded with their stream."""

    def __init__(self) -> None:
        self.kernels: list[tuple[str, FakeStream]] = []
        self.synchronized: list[str] = []
        self.events = 0
        self.now_ms = 0.0
        self.default = self._current = FakeStream(self)

    def Stream(self) -> FakeStream:  # noqa: N802 - the name that torch gives it
        return FakeStream(self)

    def Event(self, *, enable_timing: bool = False) -> FakeEvent:  # noqa: N802
        self.events += 1
        return FakeEvent(self)

    def current_stream(self) -> FakeStream:
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def kernel(self, name: str) -> None:
        self.kernels.append((name, self._current))
