"""`MeteredScheduler`: SGLang's scheduler with SGLang's own loops, and a record of every step.

For comparisons: the blocking loop and the overlap loop are measured by the same meter as Photon's.
Every override calls SGLang's method and takes times around it, nothing else. One wait moves: that
for a step's result, which SGLang does inside its result processing, is done just before it, so that
waiting can be told from work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

import sglang_photon
from sglang_photon.observe.meter import StepMeter
from sglang_photon.observe.phases import COMMIT, LAUNCH, PLAN, RECEIVE, SAMPLE, WAIT
from sglang_photon.records import StepKind
from sglang_photon.slots.timing import TURNS, DeviceTimes, EventTimes, WallTimes
from sglang_photon.upstream.metering import make_export, make_meter, with_stacks


class MeteredScheduler(Scheduler):
    """Stock loops with a meter.

    Attributes:
        meter: of the stock loop that is running; None otherwise.
        device_times: when the device worked; a simulated device brings its own.
    """

    meter: StepMeter | None = None
    device_times: DeviceTimes | None = None

    def __init__(self, server_args: Any, port_args: Any) -> None:
        super().__init__(server_args, port_args)
        self.photon_export = None

    def photon_state(self) -> dict[str, str]:
        """Version of this package, the loop in use and why."""
        return {
            "version": sglang_photon.__version__,
            "loop": "sglang" if self.enable_overlap else "blocking",
            "reason": "it was asked for, with --photon-meter on",
        }

    def get_init_info(self) -> dict[str, Any]:
        """Upstream's handshake, and which loop runs; the server shows it under `/server_info`."""
        return {**super().get_init_info(), "photon": self.photon_state()}

    def run_event_loop(self) -> None:
        """Show the loop among the metrics, then run it."""
        self.photon_export = self.photon_export or make_export(self)
        super().run_event_loop()

    def init_profiler(self) -> None:
        """Upstream's profiler, and beside it a sampler of Python stacks."""
        super().init_profiler()
        self.profiler_manager._profile = with_stacks(self.profiler_manager._profile)

    def event_loop_normal(self) -> None:
        """SGLang's blocking loop."""
        with self._metered():
            super().event_loop_normal()

    def event_loop_overlap(self) -> None:
        """SGLang's overlap loop."""
        with self._metered():
            super().event_loop_overlap()

    def ingest_requests(self, stop_at_pause: bool = False) -> Any:
        """Phase: receive."""
        self._enter(RECEIVE)
        return super().ingest_requests(stop_at_pause)

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Phase: plan."""
        self._enter(PLAN)
        return super().get_next_batch_to_run(running_batch, last_batch)

    def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        """Phase: launch; in the blocking loop on a CPU, the forward too."""
        if self.meter is None:
            return super().run_batch(batch, pp_proxy_tensors)
        self.meter.enter(LAUNCH)
        slot = self._steps % TURNS
        self._steps += 1
        self._begun = self._simulated
        result = super().run_batch(batch, pp_proxy_tensors)
        event = None
        if self.device != "cpu":
            event = self._events[slot]
            event.record(self.forward_stream if self.enable_overlap else None)
        self._flight[id(result)] = (slot, self._begun, event)
        if len(self._flight) > TURNS:
            # A result that upstream never processes, which no loop here is known to do.
            self._flight.pop(next(iter(self._flight)))
        # Where nothing overlaps, the device's time is part of the launch.
        within = self.device == "cpu" and not self._simulated
        self.meter.launched(
            slot,
            kind=StepKind.PREFILL if batch.forward_mode.is_extend() else StepKind.DECODE,
            rows=len(batch.reqs),
            lockstep=None,
            inside=self.device_times.of(slot) if within and self._begun else None,
        )
        return result

    def launch_batch_sample_if_needed(self, batch_result: Any, cur_batch: Any) -> Any:
        """Phase: sample."""
        if self.meter is None or batch_result is None or batch_result.delay_sample_func is None:
            return super().launch_batch_sample_if_needed(batch_result, cur_batch)
        self.meter.enter(SAMPLE)
        slot, timed, event = self._flight[id(batch_result)]
        stream = None if self.device == "cpu" else self.forward_stream
        if timed and not self._simulated:
            self.device_times.begins(slot, stream, forward=False)
        result = super().launch_batch_sample_if_needed(batch_result, cur_batch)
        if timed and not self._simulated:
            self.device_times.ends(slot, stream, forward=False)
        if event is not None:
            event.record(stream)
        return result

    def process_batch_result(self, batch: Any, result: Any) -> None:
        """Phases: wait for device, commit."""
        meter = self.meter
        launched = None if meter is None else self._flight.pop(id(result), None)
        if meter is None or launched is None:
            super().process_batch_result(batch, result)
            return
        slot, timed, event = launched
        meter.enter(WAIT)
        if getattr(result, "copy_done", None) is not None:
            result.copy_done.synchronize()
        elif event is not None:
            event.synchronize()
        meter.enter(COMMIT)
        super().process_batch_result(batch, result)
        busy = self.device_times.of(slot) if timed else None
        meter.committed(slot, zombies=0, busy=busy)

    def on_idle(self) -> None:
        """Phase: idle."""
        if self.meter is not None:
            self.meter.rests()
        super().on_idle()

    def _enter(self, phase: int) -> None:
        if self.meter is not None:
            self.meter.enter(phase)

    @contextmanager
    def _metered(self) -> Iterator[None]:
        self._steps = 0
        self._flight: dict[int, tuple[int, bool, Any]] = {}
        self._simulated = self.device_times is not None
        on_cpu = self.device == "cpu"
        self._events = [] if on_cpu else [self.device_module.Event() for _ in range(TURNS)]
        self.meter = make_meter(self, lane=_lane_name(self))
        try:
            if self._simulated or not self.spec_algorithm.is_none():
                # With a draft model a step has several forwards: no single pair of times is true.
                yield
            else:
                with self._watched_device():
                    yield
        finally:
            self.meter = None

    @contextmanager
    def _watched_device(self) -> Iterator[None]:
        """Take times where the runner's forward begins, and where the worker has sampled."""
        runner, worker = self.tp_worker.model_runner, self.model_worker
        clock = time.perf_counter
        self.device_times = (
            WallTimes(clock=clock)
            if self.device == "cpu"
            else EventTimes(cuda=self.device_module, clock=clock)
        )

        def begins() -> None:
            if not self._begun:
                self._begun = True
                self.device_times.begins(self._slot(), self._stream(), forward=True)

        def ends() -> None:
            if self._begun:
                self.device_times.ends(self._slot(), self._stream(), forward=True)

        watched = (
            (runner, "forward", _around(runner.forward, before=begins)),
            *(
                (worker, name, _around(getattr(worker, name), after=ends))
                for name in ("forward_batch_generation", "forward_batch_embedding")
                if hasattr(worker, name)
            ),
        )
        # Somebody else may have put a method of their own on the instance.
        before = [(owner, name, vars(owner).get(name)) for owner, name, _ in watched]
        for owner, name, method in watched:
            setattr(owner, name, method)
        try:
            yield
        finally:
            for owner, name, method in before:
                if method is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, method)
            self.device_times = None

    def _slot(self) -> int:
        return (self._steps - 1) % TURNS

    def _stream(self) -> Any:
        return None if self.device == "cpu" else self.device_module.current_stream()


def _lane_name(scheduler: MeteredScheduler) -> str:
    if scheduler._simulated:
        return "sim"
    return "inline" if scheduler.device == "cpu" else "cuda"


def _around(
    method: Callable[..., Any],
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before()
        result = method(*args, **kwargs)
        if after is not None:
            after()
        return result

    return called
