"""A scheduler on a simulated device, with a planted fault: what the profiler is tried on.

    python fault_server.py FAULT TRUTH [LOOP]

FAULT is one of `FAULTS`. TRUTH is where the device's own clock is written down, again and again,
for the test only. Each line on standard input is the path of a Python file with one function, whose
name the test made up: from then on it is called where the fault belongs. It serves until standard
input is closed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from sglang_photon import reference

reference.install()

from sglang_photon.upstream.bench_loops import Bench  # noqa: E402
from sglang_photon.upstream.in_process import run  # noqa: E402

FAULTS = ("none", "intake", "hidden copy", "slow commit", "starving client")
STEP_S = 5e-3
EASY_STEP_S = 10e-3
"""Where nothing is planted: on a busy machine the host needs some slack to be in time."""
STEP_S_OF = {"none": EASY_STEP_S, "hidden copy": 1e-3}
"""A copy that waits costs what the host does after it, which is little beside a long step."""

ROWS = 4
ANSWER = 60
SLEEP_S, EVERY_S = 6e-3, 20e-3
SLOW_S = 8e-3
PAUSE_S = 60e-3
SHORT_ANSWER = 8


@dataclass
class Plant:
    """The planted function of the moment."""

    function: Callable[..., None]


class Load:
    """Keeps `ROWS` requests going, or, starving, one short request at a time with pauses.

    Args:
        bench: makes requests, has the device's clock.
        starving: whether there is too little to do.
        truth: file for the device's clock.
        fault: called at every poll.
    """

    def __init__(
        self,
        *,
        bench: Bench,
        starving: bool,
        truth: Path,
        fault: Callable[[], None],
        plant: Plant,
    ) -> None:
        self._bench = bench
        self._starving = starving
        self._fault = fault
        self._plant = plant
        self._write_truth(truth.open("w", buffering=1))
        self._next_request = 0.0
        self._closed = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _write_truth(self, file: TextIO) -> None:
        """A line for each step: when it began, and how long the device had been idle by then."""
        lane: Any = self._bench.device.lane
        submit = lane.submit

        def noted(slot: Any, job: Any, *, kind: Any = None) -> None:
            submit(slot, job, kind=kind)
            if kind is not None:
                print(lane.worked(slot)[0], lane.idle, file=file)

        lane.submit = noted

    def _listen(self) -> None:
        for line in sys.stdin:
            self._plant.function = planted(Path(line.strip()))
            print("planted", flush=True)
        self._closed.set()

    def poll(self, scheduler: Any) -> list[Any]:
        now = time.perf_counter()
        self._fault()
        if self._closed.is_set():
            return []
        inside = len(scheduler.running_batch.reqs) + len(scheduler.waiting_queue)
        if not self._starving:
            more = ROWS - inside
            return [self._bench._ask(tokens=ANSWER, stream=True) for _ in range(max(0, more))]
        if inside or now < self._next_request:
            return []
        self._next_request = now + PAUSE_S + SHORT_ANSWER * STEP_S
        return [self._bench._ask(tokens=SHORT_ANSWER, stream=True)]

    def exhausted(self) -> bool:
        return self._closed.is_set()


def planted(file: Path) -> Callable[..., None]:
    """The one function that the file defines."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., None] = getattr(module, file.stem)
    return function


def plant(fault: str, planted: Plant, scheduler: Any) -> Callable[[], None]:
    """Put a fault into a scheduler; returns what every poll calls."""
    if fault == "intake":
        last = time.perf_counter()

        def sometimes() -> None:
            nonlocal last
            if time.perf_counter() - last >= EVERY_S:
                planted.function(SLEEP_S)
                last = time.perf_counter()

        return sometimes
    if fault == "slow commit":
        reporter = scheduler.metrics_reporter
        report = reporter.update_device_timer

        def slowly() -> None:
            report()
            planted.function(SLOW_S)

        # The last thing that the commit of any step does.
        reporter.update_device_timer = slowly
    elif fault == "hidden copy":
        tracker = type(scheduler.new_token_ratio_tracker)
        decay = tracker.decay_step

        def waiting(self: Any) -> None:
            loop = scheduler.photon_loop
            newest = None if loop is None else loop.pipeline.newest
            if newest is not None:
                planted.function(loop._lane, loop._slots[newest.slot])
            decay(self)

        # Called in the plan of every decode step.
        tracker.decay_step = waiting
    return lambda: None


def main(fault: str, truth: str, loop: str = "photon") -> None:
    """Serve."""
    with Bench.open(loop=loop, rows=ROWS, metered=True) as bench:
        bench._times = dict.fromkeys(bench._times, STEP_S_OF.get(fault, STEP_S))
        scheduler = bench._scheduler
        function = Plant(lambda *_: None)
        load = Load(
            bench=bench,
            starving=fault == "starving client",
            truth=Path(truth),
            fault=plant(fault, function, scheduler),
            plant=function,
        )
        print("serving", flush=True)
        run(scheduler, load)


if __name__ == "__main__":
    main(*sys.argv[1:])
