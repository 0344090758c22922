"""`photon profile record`: stacks and step records of a running server, in one folder.

The target goes on serving. Stacks come from py-spy, steps from memory that the scheduler writes
anyway; both are on one clock. An interrupted recording is a shorter one: it says its span.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tqdm import tqdm

import sglang_photon
from sglang_photon.errors import UsageError
from sglang_photon.observe.reader import NoStepsError, Records, StepReader
from sglang_photon.profiling import inside, perturbation
from sglang_photon.profiling.folder import Recording, write_meta
from sglang_photon.profiling.perturbation import CoreUse, Perturbation
from sglang_photon.profiling.pyspy import PySpyError
from sglang_photon.profiling.sources import ByPySpy, Source, StepsOnly
from sglang_photon.profiling.targets import Server, Target

BASELINE_S = 1.0
POLL_S = 0.1
SECRET = re.compile(r"--[\w-]*(key|token|password|secret)[\w-]*(=|$)", re.I)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to record.

    Attributes:
        seconds: for how long.
        rate: stacks per second and thread.
        roles: whose, of `targets.ROLES`, or "all".
        native: frames of compiled code too.
        gil: only threads that hold the GIL.
        idle: threads that wait, too; the phases need them.
        in_process: sample from inside the schedulers instead of by py-spy.
        baseline_s: seconds of step records before the first sample, to compare with.
        stacks_needed: fail where no stacks can be taken, even if step records can be read.
        quiet: no progress bar.
    """

    seconds: float = 10.0
    rate: int = 100
    roles: Sequence[str] = ("scheduler", "process")
    native: bool = False
    gil: bool = False
    idle: bool = True
    in_process: bool = False
    baseline_s: float = BASELINE_S
    stacks_needed: bool = True
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.seconds <= 0 or not 1 <= self.rate <= 1000:
            raise UsageError(
                f"{self.seconds} seconds at {self.rate} samples per second",
                "Give a positive time and a rate from 1 to 1000",
            )


class _Steps:
    """The step records of one process, before and during the recording."""

    def __init__(self, reader: StepReader) -> None:
        self.reader = reader
        self._before: list[Records] = []
        self._during: list[Records] = []
        self.recording = False

    def poll(self) -> None:
        (self._during if self.recording else self._before).append(self.reader.read())

    @property
    def before(self) -> Records:
        return np.concatenate(self._before)

    @property
    def during(self) -> Records:
        return np.concatenate(self._during)


def record(server: Server, folder: Path, options: Options) -> Recording:
    """Record and write the folder's data; reports are made from it afterwards.

    Args:
        server: whose processes.
        folder: must not exist, or be empty.
        options: how.

    Raises:
        PhotonError: nothing can be recorded, with the reason and the remedy.
    """
    targets = server.chosen(options.roles)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "Name a new folder with --output")
    steps = {target.pid: found for target in targets if (found := _steps_of(target)) is not None}
    with _interruptible() as interrupted, ExitStack() as stack:
        source = _source(server, targets, folder, options, has_steps=bool(steps))
        _wait(options.baseline_s if steps else 0.0, steps, interrupted, lambda: True)
        try:
            began = source.start(stack)
        except PySpyError as error:
            source = _instead(error, targets, options, has_steps=bool(steps))
            began = source.start(stack)
        uses = {target.pid: CoreUse(target.pid) for target in targets}
        for found in steps.values():
            found.poll()
            found.recording = True
        _wait(options.seconds, steps, interrupted, source.alive, quiet=options.quiet)
        ended = time.perf_counter()
        cores = {pid: use.stop() for pid, use in uses.items()}
        outcomes = source.finish()
        for found in steps.values():
            found.poll()
        span = {
            "start": began,
            "end": ended,
            "seconds": ended - began,
            "asked": options.seconds,
            "interrupted": interrupted.is_set(),
        }
    parts = [
        _part(target, folder, outcomes.get(target.pid), steps.get(target.pid))
        | dict(zip(("core_pct", "core_wait_pct"), cores[target.pid], strict=True))
        for target in targets
    ]
    effect = _perturbation(source, steps, ended - began)
    return write_meta(
        folder,
        {
            **_circumstances(server),
            "span": span,
            "rate": options.rate,
            "sampler": source.describe(),
            "perturbation": {**asdict(effect), "text": effect.describe()},
            "parts": parts,
        },
    )


def _source(
    server: Server, targets: Sequence[Target], folder: Path, options: Options, *, has_steps: bool
) -> Source:
    """Who takes the stacks."""
    if options.in_process:
        return inside.InProcess(server, targets, folder, options)
    try:
        return ByPySpy(targets, folder, options)
    except PySpyError as error:
        return _instead(error, targets, options, has_steps=has_steps)


def _instead(
    error: PySpyError, targets: Sequence[Target], options: Options, *, has_steps: bool
) -> Source:
    """Go on without stacks, where that is allowed and there is something else."""
    if options.stacks_needed or not has_steps:
        raise error
    return StepsOnly(targets, str(error))


def _circumstances(server: Server) -> dict[str, Any]:
    return {
        "photon": sglang_photon.__version__,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "server": {
            "pid": server.root,
            "port": server.port,
            "command": _command_of(server.root),
            "skipped": [list(pair) for pair in server.skipped],
        },
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "load": os.getloadavg()[0],
        },
    }


def _part(
    target: Target, folder: Path, outcome: dict[str, Any] | None, steps: _Steps | None
) -> dict[str, Any]:
    part: dict[str, Any] = {
        "pid": target.pid,
        "role": target.role,
        "name": target.name,
        "python": None if target.python is None else list(target.python),
        "threads": target.threads,
        **(outcome or {}),
    }
    if steps is not None:
        np.save(folder / f"{target.name}.steps.npy", steps.during, allow_pickle=False)
        part |= {
            "facts": steps.reader.facts(),
            "reasons": steps.reader.reasons(),
            "missed_steps": steps.reader.missed,
        }
    return part


def _perturbation(source: Source, steps: dict[int, _Steps], seconds: float) -> Perturbation:
    first = next(iter(steps.values()), None)
    return perturbation.measure(
        stopped_pct=source.stopped_pct,
        before=None if first is None else first.before,
        during=None if first is None else first.during,
        cpu_s=source.cpu_s,
        seconds=seconds,
    )


def _steps_of(target: Target) -> _Steps | None:
    try:
        return _Steps(StepReader.of_process(target.pid))
    except NoStepsError:
        return None


def _wait(
    seconds: float,
    steps: dict[int, _Steps],
    interrupted: threading.Event,
    alive: Callable[[], bool],
    *,
    quiet: bool = True,
) -> None:
    """Read step records until the time is up, somebody interrupts, or all targets are gone."""
    began = now = time.perf_counter()
    with tqdm(
        total=round(seconds, 1), unit="s", desc="recording", disable=quiet or None, leave=False
    ) as bar:
        while now - began < seconds and not interrupted.is_set() and alive():
            interrupted.wait(min(POLL_S, max(0.0, began + seconds - now)))
            for found in steps.values():
                found.poll()
            before, now = now, time.perf_counter()
            bar.update(round(now - before, 2))


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the recording instead of the program."""
    event = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: event.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _command_of(pid: int) -> list[str]:
    """The command line without its secrets."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return []
    hidden = list(words)
    for index, word in enumerate(words):
        if SECRET.match(word):
            if "=" in word:
                hidden[index] = word.split("=", 1)[0] + "=..."
            elif index + 1 < len(words):
                hidden[index + 1] = "..."
    return hidden
