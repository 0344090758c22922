"""Part d: SGLang itself on this device, with each of the three loops in turn.

One scheduler of Qwen2.5-VL-3B-Instruct's sizes with random weights, Triton attention and PyTorch
sampling, decodes text rows and rows with a picture, streaming or not. Wall time comes from the
host's clock. A trace of a few steps more says how long kernels ran and what the host waited for;
idle is the wall time less that, since tracing slows the host and would itself make gaps.
Then the time to the first token of a request with a picture, and three suspicions about SGLang's
loop, each with what shows it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sglang_photon import reference
from sglang_photon.bench.gpu import model_folder
from sglang_photon.bench.gpu.journal import NO_CUDA, Journal, Value
from sglang_photon.bench.gpu.parts import CannotRunError
from sglang_photon.bench.gpu.settings import LOOPS, Settings
from sglang_photon.bench.gpu.trace import Record, Summary, Window, summarise

if TYPE_CHECKING:
    from sglang_photon.upstream.three_loops import Ask, ThreeLoops

PART = "d"
PROMPT = 64
SIDE = 224
"""Pixels of the rows' pictures: 64 tokens each."""
LATE_SIDES = (448, 1024)
LATE_BESIDE = 16
WARM = 8
TRACED = 12
ROUNDS = 2
TTFT_ROUNDS = 5
STALL_MS = 40.0
CLOCK_HZ = 1.5e9
"""Only sets how long the stalling kernel takes, roughly; its time is then read from the trace."""

SUSPICIONS = (
    "SGLang's decode with image rows waits for its stream at every step",
    "forwards wait for what intake queues on the schedule stream",
    "the default hash of a feature on the GPU makes the host wait",
)

ON_GPU = (
    ("--device", "cuda"),
    ("--load-format", "dummy"),
    ("--dtype", "bfloat16"),
    ("--attention-backend", "triton"),
    ("--mm-attention-backend", "sdpa"),
    ("--sampling-backend", "pytorch"),
    ("--cuda-graph-backend-prefill", "disabled"),
    ("--mem-fraction-static", "0.5"),
    ("--random-seed", "1"),
    ("--log-level", "error"),
    ("--watchdog-timeout", "100000"),
)
"""What needs neither compiled kernels nor nvcc."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One loop on one load; medians over the rounds."""

    wall_us: float
    tok_s: float
    plan_us: float
    summary: Summary | None
    tokens: list[list[int]]


def run(settings: Settings, journal: Journal) -> None:
    """All cells, the first tokens, the suspicions."""
    measure(settings, journal, part=PART, more=())


def measure(settings: Settings, journal: Journal, *, part: str, more: Sequence[str]) -> None:
    """Build the scheduler with some arguments more, and measure.

    Raises:
        CannotRunError: SGLang is not installed.
    """
    journal.figure(part, "kernels", prepare(settings.device))
    from sglang_photon.upstream.in_process import QUIET
    from sglang_photon.upstream.three_loops import ThreeLoops

    with tempfile.TemporaryDirectory(prefix="photon-gpu-") as scratch:
        model = model_folder.write(Path(scratch) / "model", small=settings.rehearse)
        defaults = (*QUIET, ("--load-format", "dummy")) if settings.rehearse else ON_GPU
        began = time.perf_counter()
        with ThreeLoops.open(arguments(settings, model, more), defaults=defaults) as loops:
            journal.figure(part, "scheduler built", time.perf_counter() - began, "s")
            _Measurement(settings=settings, journal=journal, part=part, loops=loops).all()


def prepare(device: str) -> str:
    """Bring up what SGLang needs here, before it is imported; which kernels it gets.

    Raises:
        CannotRunError: SGLang is not installed.
    """
    if find_spec("sglang") is None:
        raise CannotRunError(
            "SGLang is not installed here", "Run `pip install .` first, or run from the bundle"
        )
    if device == "cpu":
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        return _reference_kernels()
    # One process: its groups need no network, and a machine without one may have no other device.
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")
    if find_spec("sgl_kernel") is not None:
        return "real: sgl_kernel is installed"
    os.environ["SGLANG_PHOTON_REFERENCE_OPS"] = "1"
    # Compiling takes longer than what is measured, and would go on within it.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    return f"{_reference_kernels()}; torch.compile is off"


def _reference_kernels() -> str:
    os.environ.update(reference.child_environment(os.environ))
    reference.install()
    kernels = reference.status().kernels
    return f"{kernels.choice}: {kernels.reason}"


def arguments(settings: Settings, model: Path, more: Sequence[str]) -> list[str]:
    """SGLang's arguments: as many rows, and graphs for as many, as will be measured."""
    rows = max(*settings.batches, LATE_BESIDE + 1)
    longest = PROMPT + 80 + tokens_needed(settings)
    given = [
        *("--model-path", str(model), "--disable-radix-cache"),
        *("--max-running-requests", str(rows)),
        *("--max-total-tokens", str(rows * longest + 8192)),
        *("--chunked-prefill-size", "8192", "--max-prefill-tokens", "16384"),
    ]
    if not settings.rehearse:
        sizes = sorted({*settings.batches, LATE_BESIDE, LATE_BESIDE + 1})
        given += ["--cuda-graph-bs-decode", *map(str, sizes)]
    return [*given, *more]


def tokens_needed(settings: Settings) -> int:
    """Of each answer, so that no row ends while anything is measured."""
    return settings.steps + TRACED + 4 * WARM + 16


class _Measurement:
    def __init__(
        self, *, settings: Settings, journal: Journal, part: str, loops: ThreeLoops
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._part = part
        self._loops = loops
        self._device = settings.device
        self._rounds = 1 if settings.rehearse else ROUNDS
        # A part that was ended at its limit goes on where it was.
        self._known = set() if settings.again else journal.names(part)

    def all(self) -> None:
        """Everything; what settles a suspicion comes first."""
        if SUSPICIONS[-1] not in self._known:
            self._suspicions()
        for batch in self._settings.batches:
            for side in (0, SIDE):
                for stream in (False, True):
                    self._cells(batch, side=side, stream=stream)
        self._first_tokens()

    def _ask(self, *, side: int, stream: bool) -> Ask:
        from sglang_photon.upstream.three_loops import Ask

        return Ask(prompt=PROMPT, side=side, tokens=tokens_needed(self._settings), stream=stream)

    def _load(self, batch: int, *, side: int, stream: bool, rounds: int) -> dict[str, Cell]:
        """One load with each loop in turn, `rounds` times."""
        found: dict[str, list[Cell]] = {loop: [] for loop in LOOPS}
        for _ in range(rounds):
            for loop in LOOPS:
                self._loops.use(loop)
                self._loops.rewind()
                window = Window(device=self._device)
                outcome = self._loops.steady(
                    self._ask(side=side, stream=stream),
                    batch=batch,
                    warm=WARM,
                    steps=self._settings.steps,
                    traced=TRACED,
                    probe=window,
                )
                cell = Cell(
                    wall_us=outcome.wall_s / outcome.steps * 1e6,
                    tok_s=batch * outcome.steps / outcome.wall_s,
                    plan_us=outcome.plan_s / outcome.steps * 1e6,
                    summary=summarise(window.records(), steps=outcome.traced),
                    tokens=outcome.tokens,
                )
                found[loop].append(cell)
        return {loop: _median(cells) for loop, cells in found.items()}

    def _cells(self, batch: int, *, side: int, stream: bool) -> None:
        kind = "image" if side else "text"
        load = f"{batch} {kind} rows, {'streaming' if stream else 'not streaming'}"
        if f"{load}, {LOOPS[-1]}" in self._known:
            return
        found = self._load(batch, side=side, stream=stream, rounds=self._rounds)
        expected = found["blocking"].tokens
        for loop, cell in found.items():
            row = f"{load}, {loop}"
            seen = cell.summary
            same = sum(one == other for one, other in zip(cell.tokens, expected, strict=True))
            figures: dict[str, tuple[Value, str]] = {
                "wall per step": (cell.wall_us, "µs"),
                "tok/s": (cell.tok_s, ""),
                "GPU busy per step": (None if seen is None else seen.busy_us, "µs"),
                "GPU idle per step": (
                    None if seen is None else max(0.0, cell.wall_us - seen.busy_us),
                    "µs",
                ),
                "idle in the trace": (None if seen is None else seen.idle_us, "µs"),
                "waits for a stream per step": (None if seen is None else seen.stream_waits, ""),
                "attention's plan per step": (cell.plan_us, "µs"),
                "rows with blocking's tokens": (f"{same} of {batch}", ""),
            }
            for column, (value, unit) in figures.items():
                note = NO_CUDA if value is None else ""
                self._journal.figure(self._part, row, value, unit, note, column=column)

    def _first_tokens(self) -> None:
        beside = min(LATE_BESIDE, max(self._settings.batches))
        sides = (SIDE,) if self._settings.rehearse else LATE_SIDES
        rounds = 1 if self._settings.rehearse else TTFT_ROUNDS
        for side in sides:
            times: dict[str, list[float]] = {loop: [] for loop in LOOPS}
            for _ in range(rounds):
                for loop in LOOPS:
                    self._loops.use(loop)
                    taken = self._loops.first_token_s(
                        self._ask(side=side, stream=True),
                        beside=self._ask(side=0, stream=True),
                        batch=beside,
                        warm=WARM,
                    )
                    if taken is not None:
                        times[loop].append(taken)
            for loop, taken_s in times.items():
                self._say(
                    f"image TTFT, {side} x {side} beside {beside} text rows, {loop}",
                    statistics.median(taken_s) * 1e3 if taken_s else None,
                    "ms",
                    "from the scheduler's intake; image processing is not in it",
                )

    def _suspicions(self) -> None:
        names = SUSPICIONS
        rows = min(16, max(self._settings.batches))
        text, image = (self._load(rows, side=side, stream=True, rounds=1) for side in (0, SIDE))
        if self._device != "cuda":
            for name in names:
                self._say(name, None, note=NO_CUDA)
            return
        from sglang_photon.upstream.three_loops import hash_waits

        one, other = text["sglang"].summary, image["sglang"].summary
        if one is not None and other is not None:
            self._say(
                names[0],
                other.stream_waits >= 1 > one.stream_waits,
                note=f"image rows {other.text()}, idle {other.idle_us:.0f} µs; "
                f"text rows {one.text()}, idle {one.idle_us:.0f} µs",
            )
        self._loops.use("sglang")
        stall = _Stall(device=self._device)
        steps = self._loops.steady(
            self._ask(side=0, stream=True),
            batch=rows,
            warm=WARM,
            steps=WARM,
            traced=TRACED,
            probe=stall,
        ).traced
        step_us = text["sglang"].wall_us
        stalled_us, others_us = stall.during()
        self._say(
            names[1],
            others_us < min(stalled_us / 2, 3 * step_us),
            note=f"a kernel of {stalled_us / 1e3:.1f} ms on that stream, other kernels ran for "
            f"{others_us / 1e3:.1f} ms of it; {steps} steps of {step_us / 1e3:.1f} ms",
        )
        self._say(names[2], hash_waits())

    def _say(self, name: str, value: Value, unit: str = "", note: str = "") -> None:
        self._journal.figure(self._part, name, value, unit, note)


class _Stall(Window):
    """A window that begins with one long kernel on the stream on which intake runs."""

    def start(self) -> None:
        super().start()
        torch.cuda._sleep(int(STALL_MS / 1e3 * CLOCK_HZ))

    def during(self) -> tuple[float, float]:
        """Microseconds of that kernel, and of them those in which another kernel ran."""
        return overlap(self.records(), name="spin_kernel")


def overlap(records: Sequence[Record], *, name: str) -> tuple[float, float]:
    """Microseconds of the kernel of that name, and of them those in which other kernels ran."""
    kernels = [record for record in records if record.is_kernel]
    one = next((record for record in kernels if name in record.name), None)
    if one is None:
        return 0.0, 0.0
    busy, until = 0, one.start_ns
    for record in sorted(kernels, key=lambda record: record.start_ns):
        if record is not one:
            start, end = max(record.start_ns, until), min(record.end_ns, one.end_ns)
            busy += max(0, end - start)
            until = max(until, end)
    return (one.end_ns - one.start_ns) / 1e3, busy / 1e3


def _median(cells: Sequence[Cell]) -> Cell:
    """Of the rounds; trace and tokens are the last round's."""
    return Cell(
        wall_us=statistics.median(cell.wall_us for cell in cells),
        tok_s=statistics.median(cell.tok_s for cell in cells),
        plan_us=statistics.median(cell.plan_us for cell in cells),
        summary=cells[-1].summary,
        tokens=cells[-1].tokens,
    )
