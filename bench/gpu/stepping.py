"""The decoder as the two-slot loop's engine, and the blocking loop beside it.

Both loops use the product's own lane and slots; the pipelined one is the product's own `PhotonLoop`
on its pipeline. Only the engine is ours: every step decodes all rows, and committing a step costs
the host a busy loop of a given length, in place of what an engine does there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch

from sglang_photon.bench.gpu.clock import Gaps, spin
from sglang_photon.loop.host import Release
from sglang_photon.loop.tick import PhotonLoop
from sglang_photon.records import StepKind
from sglang_photon.slots.lane import CudaLane, Lane, ThreadLane
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.state import SLOTS


@dataclass(frozen=True, kw_only=True)
class Load:
    """One cell.

    Attributes:
        batch: rows.
        forward: runs one step of that batch; `tokens` holds its result afterwards.
        tokens: (batch,) int64 on the device.
        host_s: busy time of a commit.
        steps: decode steps.
    """

    batch: int
    forward: Callable[[], None]
    tokens: torch.Tensor
    host_s: float
    steps: int


@dataclass(kw_only=True)
class Trace:
    """What a loop did.

    Attributes:
        tokens: of every step, as the host read them from the slot.
        commits: when each step had been committed, seconds.
        late: launches that found the device dry; None where nothing counts them.
        gaps: the device's idle times.
    """

    gaps: Gaps
    tokens: list[list[int]] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    late: int | None = None


class _Work:
    """One step, as `loop.host.Work`."""

    kind = StepKind.DECODE
    samples_later = False
    owes_first_token = False
    lockstep = None

    def __init__(
        self, *, load: Load, riders: Sequence[Hashable], out: torch.Tensor, trace: Trace
    ) -> None:
        self.riders = riders
        self._load = load
        self._out = out
        self._trace = trace
        self._host: torch.Tensor | None = None

    def stage(self, slot: DecodeSlot) -> None:
        """Nothing: the step reads its tokens where the last one wrote them."""

    def forward(self) -> None:
        """Lane: the step, its tokens put aside before the next one overwrites them."""
        self._trace.gaps.begin()
        self._load.forward()
        self._out.copy_(self._load.tokens)
        self._trace.gaps.end()

    def prepare_sampling(self) -> None:
        """Never: sampling is part of the forward."""

    def sample(self) -> None:
        """Never: sampling is part of the forward."""

    def read_back(self, slot: DecodeSlot) -> None:
        """Lane, copies."""
        self._host = slot.token_ids[: self._load.batch]
        self._host.copy_(self._out, non_blocking=True)

    def commit(self, *, zombies: int) -> None:
        """Host: read the tokens, then work for as long as the load says."""
        del zombies
        assert self._host is not None, "the lane has read it back"
        self._trace.tokens.append(self._host.tolist())
        spin(self._load.host_s)
        self._trace.commits.append(time.perf_counter())


class _Rows:
    """Makes the steps of a load; one result tensor for each step that may be in flight."""

    def __init__(self, load: Load, trace: Trace) -> None:
        self._load = load
        self._trace = trace
        self._riders = tuple(range(load.batch))
        self._outs = itertools.cycle([torch.empty_like(load.tokens) for _ in range(SLOTS)])

    def next(self) -> _Work:
        return _Work(load=self._load, riders=self._riders, out=next(self._outs), trace=self._trace)


class _Engine:
    """`loop.host.Host` over a fixed number of steps."""

    paused = False

    def __init__(self, load: Load, trace: Trace) -> None:
        self._rows = _Rows(load, trace)
        self._left = load.steps
        self.exiting = False

    def receive(self) -> None:
        """Nothing arrives."""

    def chores(self) -> None:
        """None."""

    def settle_reason(self) -> str | None:
        """Never."""
        return None

    def expects_prefill(self) -> bool:
        """Never."""
        return False

    def plan(self) -> _Work | None:
        """The next step of all rows."""
        if self._left == 0:
            return None
        self._left -= 1
        return self._rows.next()

    def rest(self) -> None:
        """All steps are committed."""
        self.exiting = True

    def wait_paused(self) -> None:
        """Never."""

    def release(self, releases: Sequence[Release]) -> None:
        """Nothing ends."""


def make_lane(device: str) -> Lane:
    """The product's lane for the device; without one, its test double with real concurrency."""
    if device == "cuda":
        return CudaLane(
            compute=torch.cuda.Stream(), copies=torch.cuda.Stream(), cuda=torch.cuda, slots=SLOTS
        )
    return ThreadLane()


def make_slots(device: str, rows: int) -> tuple[DecodeSlot, ...]:
    """The product's slots."""
    pinned = device == "cuda"
    return tuple(
        DecodeSlot.allocate(index=index, max_rows=rows, pinned=pinned, device=device)
        for index in range(SLOTS)
    )


def blocking(load: Load, *, lane: Lane, slots: Sequence[DecodeSlot], device: str) -> Trace:
    """Launch, wait, commit, one step after the other."""
    trace = Trace(gaps=Gaps(device=device, count=load.steps))
    rows, slot = _Rows(load, trace), slots[0]
    for _ in range(load.steps):
        work = rows.next()
        lane.submit(slot, work.forward, kind=work.kind)
        lane.copy(slot, lambda work=work: work.read_back(slot))  # type: ignore[misc]
        lane.wait(slot)
        work.commit(zombies=0)
    return trace


def pipelined(load: Load, *, lane: Lane, slots: Sequence[DecodeSlot], device: str) -> Trace:
    """The product's loop: the next forward is queued before a step is committed."""
    trace = Trace(gaps=Gaps(device=device, count=load.steps))
    loop = PhotonLoop(host=_Engine(load, trace), lane=lane, slots=slots)
    loop.run()
    trace.late = loop.stats.late.total()
    return trace
