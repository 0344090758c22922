"""Lanes: where forwards run, in order, and where their results are copied to the host.

The loop does not know whether a forward runs on a stream, in another thread or in its own. It
submits jobs: the forward of a step, later perhaps its sampling, then the copy of its results. All
forwards run in submission order (P1); copies run beside them. Waiting is for one slot's copy, and
for nothing else (P6).

    submit(slot, forward)  submit(slot, sample)  copy(slot, read back)  ...  wait(slot)

Jobs take no arguments and return nothing; what they compute stays with the step that made them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

from sglang_photon.errors import PhotonError
from sglang_photon.records import StepKind
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.timing import Busy, BusyTimes, EventTimes


class LaneClosedError(PhotonError):
    """A job for a lane that has been closed: it would never run."""

    def __init__(self) -> None:
        super().__init__("The lane is closed", "Make a new lane for a new loop")


Job = Callable[[], None]
Entry = Callable[[], AbstractContextManager[Any]]


class Lane(Protocol):
    """Where the forwards of both slots run."""

    @property
    def name(self) -> str:
        """As `--photon-lane` spells it."""

    @property
    def asynchronous(self) -> bool:
        """Whether `submit` returns before the job has run."""

    def submit(self, slot: DecodeSlot, job: Job, *, kind: StepKind | None = None) -> None:
        """Run a job of a slot's step after all jobs submitted before.

        Args:
            slot: the step's slot.
            job: what to run.
            kind: of the step, for its forward; None for its sampling, which is short.
        """

    def copy(self, slot: DecodeSlot, job: Job) -> None:
        """Run a job after everything submitted so far, beside what is submitted later."""

    def done(self, slot: DecodeSlot) -> bool:
        """Whether the slot's copy has arrived; never waits."""

    def wait(self, slot: DecodeSlot) -> None:
        """Wait for the slot's copy.

        Raises:
            Exception: whatever a job of the slot raised.
        """

    def worked(self, slot: DecodeSlot) -> Busy | None:
        """When the device worked on the slot's step, asked once its copy has arrived.

        Steps are asked for once each, in launch order. None where the lane does not know.
        """

    def close(self) -> None:
        """Finish what was submitted and free what the lane holds."""


class InlineLane:
    """The caller's own thread: the default without a GPU.

    On few cores a second thread makes CPU forwards slower than the overlap could win back.
    """

    name = "inline"
    asynchronous = False

    def __init__(self) -> None:
        self._times = BusyTimes()

    def submit(self, slot: DecodeSlot, job: Job, *, kind: StepKind | None = None) -> None:
        """Run the job now."""
        start = time.perf_counter()
        job()
        end = time.perf_counter()
        self._times.note(slot.index, start=start, end=end, forward=kind is not None)

    def copy(self, slot: DecodeSlot, job: Job) -> None:
        """Run the job now."""
        job()

    def done(self, slot: DecodeSlot) -> bool:
        """Always: nothing is ever pending."""
        return True

    def wait(self, slot: DecodeSlot) -> None:
        """Nothing to wait for."""

    def worked(self, slot: DecodeSlot) -> Busy | None:
        """The wall clock around the slot's jobs."""
        return self._times.of(slot.index)

    def close(self) -> None:
        """Nothing to free."""


class ThreadLane:
    """One worker thread, first in, first out: a stand-in for a device that really runs beside us.

    Races and broken stream order show here without a GPU, which is what it is for.

    Args:
        enter: entered in the worker around each job: what is per thread and has to be entered
            again (grad mode).
    """

    name = "thread"
    asynchronous = True

    def __init__(self, *, enter: Entry = nullcontext) -> None:
        self._enter = enter
        self._jobs: queue.SimpleQueue[tuple[Job, threading.Event | None] | None] = (
            queue.SimpleQueue()
        )
        self._copied: dict[int, threading.Event] = {}
        self._times = BusyTimes()
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="photon-lane", daemon=True)
        self._thread.start()

    def submit(self, slot: DecodeSlot, job: Job, *, kind: StepKind | None = None) -> None:
        """Queue the job."""
        if self._closed:
            raise LaneClosedError
        self._jobs.put((partial(self._timed, slot.index, job, kind is not None), None))

    def copy(self, slot: DecodeSlot, job: Job) -> None:
        """Queue the job; `wait` returns once it has run."""
        arrived = self._copied[slot.index] = threading.Event()
        self._jobs.put((job, arrived))

    def done(self, slot: DecodeSlot) -> bool:
        """Whether the slot's copy has run."""
        arrived = self._copied.get(slot.index)
        return arrived is not None and arrived.is_set()

    def wait(self, slot: DecodeSlot) -> None:
        """Wait for the slot's copy; raise what a job raised."""
        self._copied[slot.index].wait()
        if self._failure is not None:
            raise self._failure

    def worked(self, slot: DecodeSlot) -> Busy | None:
        """The wall clock around the slot's jobs, in the worker."""
        return self._times.of(slot.index)

    def close(self) -> None:
        """Run what is queued, then end the thread."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _timed(self, slot: int, job: Job, forward: bool) -> None:
        start = time.perf_counter()
        job()
        self._times.note(slot, start=start, end=time.perf_counter(), forward=forward)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, arrived = item
            # After a failure nothing runs any more, but nobody is left waiting.
            if self._failure is None:
                try:
                    with self._enter():
                        job()
                except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                    self._failure = error
            if arrived is not None:
                arrived.set()


class CudaLane:
    """One compute stream for the forwards of both slots, one copy stream beside it.

    Args:
        compute: `torch.cuda.Stream` on which every forward runs (P1).
        copies: `torch.cuda.Stream` for device-to-host copies.
        cuda: the module `torch.cuda`, or another device's module with the same names.
        slots: how many slots there are; their events are made here, once.
    """

    name = "cuda"
    asynchronous = True

    def __init__(self, *, compute: Any, copies: Any, cuda: Any, slots: int) -> None:
        self._compute = compute
        self._copies = copies
        self._cuda = cuda
        self._copied = [cuda.Event() for _ in range(slots)]
        self._times = EventTimes(cuda=cuda, clock=time.perf_counter)

    def submit(self, slot: DecodeSlot, job: Job, *, kind: StepKind | None = None) -> None:
        """Queue the job's kernels behind what the host has queued on its own stream."""
        forward = kind is not None
        self._compute.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._compute):
            self._times.begins(slot.index, self._compute, forward=forward)
            job()
            self._times.ends(slot.index, self._compute, forward=forward)

    def copy(self, slot: DecodeSlot, job: Job) -> None:
        """Queue the job's copies behind the forwards so far; later forwards do not wait."""
        self._copies.wait_stream(self._compute)
        with self._cuda.stream(self._copies):
            job()
            self._copied[slot.index].record(self._copies)

    def done(self, slot: DecodeSlot) -> bool:
        """Whether the slot's event has passed."""
        return bool(self._copied[slot.index].query())

    def wait(self, slot: DecodeSlot) -> None:
        """Block on the slot's event: the only wait of a steady tick (P6)."""
        self._copied[slot.index].synchronize()

    def worked(self, slot: DecodeSlot) -> Busy | None:
        """What the events around the slot's kernels say."""
        return self._times.of(slot.index)

    def close(self) -> None:
        """Wait until both streams have run dry."""
        self._compute.synchronize()
        self._copies.synchronize()
