"""Are there bubbles, who makes them, and what would be won: one scheduler's recording, judged.

A bubble is device time that passes with nothing to do although rows were runnable (P8); only the
step records know it, and without them no verdict is given. What made a launch late is everything
that the host did since the launch before, except waiting for the device where the loop is meant to:
the stacks of those stretches name the function. A wait for the device anywhere else is a fault, and
is put down to whoever waits.

The cost model: T_pipe is what a step takes now; T_block is what it would take if the device waited
for the host in every step: its own time plus the host's work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_photon.observe import layout, phases
from sglang_photon.observe.phases import NAMES
from sglang_photon.observe.reader import Records
from sglang_photon.profiling.blame import Blame, blame
from sglang_photon.profiling.folder import Part, Recording

NO_BUBBLES, BUBBLES, CANNOT_TELL = 0, 2, 3
FEWEST_STEPS = 30
WINDOWS = 20
DRAWS = 1000
FEWEST_SAMPLES = 10
SETTLED_SHARE = 0.1
BUSY_CORES_PCT = 2.0
STARVED_PCT = 10.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Who makes launches late.

    Attributes:
        phase: of the tick.
        function: that a person would look into; None where too few stacks were seen.
        share: of the host's time before late launches.
        waits_for_device: it is a wait for the device in the wrong place, not work.
    """

    phase: str
    function: str | None
    share: float
    waits_for_device: bool = False

    def describe(self) -> str:
        """For the verdict's second line."""
        where = self.function or "function unknown (too few stacks)"
        wait = ", which waits for the device there" if self.waits_for_device else ""
        return f"{self.phase}: {where}{wait} ({self.share:.0%})"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement; figures are None where nothing can be said.

    Attributes:
        bubbles: whether the device was idle, with rows runnable, for more than `max_idle_pct`.
        why_not: why no judgement is possible.
        max_idle_pct: the limit.
        idle_pct: of the time, the device idle while rows were runnable; `idle_interval`: 95 %.
        unfed_pct: of the time, the device idle with nothing to run.
        idle_ms_per_step: the same as `idle_pct`, for each step.
        causes: largest first.
        t_pipe_ms: a step, as it is; `t_device_ms`: the device's part; `host_ms`: the host's work.
        t_block_ms: a step of a loop that overlaps nothing; `t_block_measured`: not estimated.
        zombie_pct: of the launched rows, those that had ended; `expected_zombie_pct`: 1/L.
        core_wait_pct: of the time, the scheduler's thread was ready to run and had no core.
        steps: how many were seen; `late_steps`: of these, with a bubble before them.
        advice: what to change.
        notes: what to know about these figures.
        span: from when to when, on `time.perf_counter`.
    """

    bubbles: bool | None
    why_not: str | None = None
    max_idle_pct: float = 0.0
    idle_pct: float | None = None
    idle_interval: tuple[float, float] | None = None
    unfed_pct: float | None = None
    idle_ms_per_step: float | None = None
    causes: tuple[Cause, ...] = ()
    t_pipe_ms: float | None = None
    t_device_ms: float | None = None
    host_ms: float | None = None
    t_block_ms: float | None = None
    t_block_measured: bool = False
    zombie_pct: float | None = None
    expected_zombie_pct: float | None = None
    core_wait_pct: float | None = None
    steps: int = 0
    late_steps: int = 0
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    span: tuple[float, float] = (0.0, 0.0)

    @property
    def exit_code(self) -> int:
        """For pipelines."""
        if self.bubbles is None:
            return CANNOT_TELL
        return BUBBLES if self.bubbles else NO_BUBBLES

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


@dataclass(slots=True)
class _Figures:
    """Sums over the steps."""

    records: Records
    total: float = field(init=False)
    late: Floats = field(init=False)
    unfed: Floats = field(init=False)
    host: Floats = field(init=False)
    host_mean: float = field(init=False)

    def __post_init__(self) -> None:
        r = self.records
        rested = (r["flags"] & layout.RESTED) > 0
        self.total = float(r["end"][-1] - r["start"][0])
        idle = r["idle"].astype(float)
        idle[0] = 0.0
        self.late = np.where(rested, 0.0, idle) + r["gap"]
        self.unfed = np.where(rested, idle, 0.0)
        self.host = np.diff(r["spent"][:, list(phases.HOST)].sum(axis=1), prepend=np.nan)
        # After a rest the host has also polled and waited for somebody to ask.
        self.host[rested] = np.nan
        self.host_mean = float(np.nanmean(self.host)) if np.isfinite(self.host).any() else 0.0


def judge(
    recording: Recording, *, max_idle_pct: float, blocking: Recording | None = None
) -> Verdict:
    """The verdict on a recording's first scheduler.

    Args:
        recording: with step records.
        max_idle_pct: how much idle time is called none.
        blocking: a recording of the blocking loop under the same load, for a measured T_block.
    """
    part = recording.scheduler or next((p for p in recording.parts if p.steps is not None), None)
    why_not = _obstacle(part)
    if why_not is not None:
        return Verdict(bubbles=None, why_not=why_not, max_idle_pct=max_idle_pct)
    assert part is not None
    records = timed(part)
    figures = _Figures(records)
    idle_pct = float(figures.late.sum()) / figures.total * 100
    is_late = (records["flags"] & layout.LATE) > 0
    found = blame(part, records, is_late)
    bubbles = idle_pct > max_idle_pct
    causes = _causes(records, is_late, found) if is_late.any() else ()
    busy = records["end"] - records["start"] - records["gap"]
    count = len(records)
    host_ms = max(0.0, figures.host_mean - found.hidden_wait_s / count) * 1e3
    t_device_ms = float(busy.mean()) * 1e3
    measured = None if blocking is None else _t_pipe_ms(blocking)
    unfed_pct = float(figures.unfed.sum()) / figures.total * 100
    return Verdict(
        bubbles=bubbles,
        max_idle_pct=max_idle_pct,
        idle_pct=idle_pct,
        idle_interval=_interval(records, figures),
        unfed_pct=unfed_pct,
        idle_ms_per_step=float(figures.late.sum()) / count * 1e3,
        causes=causes,
        t_pipe_ms=(figures.total - float(figures.unfed.sum())) / count * 1e3,
        t_device_ms=t_device_ms,
        host_ms=host_ms,
        t_block_ms=t_device_ms + host_ms if measured is None else measured,
        t_block_measured=measured is not None,
        zombie_pct=float(records["zombies"].sum()) / float(records["rows"].sum()) * 100,
        expected_zombie_pct=_one_over_length(records),
        core_wait_pct=part.meta.get("core_wait_pct"),
        steps=count,
        late_steps=int(is_late.sum()),
        advice=_advice(part, records, is_late, causes if bubbles else (), unfed_pct),
        notes=_notes(recording, part),
        span=(float(records["start"][0]), float(records["end"][-1])),
    )


def timed(part: Part) -> Records:
    """The step records whose device times are known, in order."""
    assert part.steps is not None
    records: Records = part.steps[(part.steps["flags"] & layout.TIMED) > 0]
    return records


def _obstacle(part: Part | None) -> str | None:
    """Why nothing can be said."""
    if part is None or part.steps is None:
        return (
            "no device timing: this process keeps no step records (serve with --photon-loop auto, "
            "or a stock loop with --photon-meter on)"
        )
    if len(part.steps) and not len(timed(part)):
        return "no device timing: the steps were recorded without it"
    if len(timed(part)) < FEWEST_STEPS:
        return (
            f"too few steps: {len(timed(part))} were committed, {FEWEST_STEPS} are needed "
            "(is there load on the server?)"
        )
    return None


def _t_pipe_ms(recording: Recording) -> float | None:
    part = recording.scheduler
    if part is None or part.steps is None or len(timed(part)) < FEWEST_STEPS:
        return None
    records = timed(part)
    figures = _Figures(records)
    return (figures.total - float(figures.unfed.sum())) / len(records) * 1e3


def _interval(records: Records, figures: _Figures) -> tuple[float, float]:
    """95 % interval of the idle share, by a bootstrap over windows of time.

    Neighbouring steps are alike, so windows are drawn, not steps.
    """
    edges = np.linspace(records["start"][0], records["end"][-1], WINDOWS + 1)
    window = np.clip(np.searchsorted(edges, records["start"], side="right") - 1, 0, WINDOWS - 1)
    idle = np.bincount(window, weights=figures.late, minlength=WINDOWS)
    length = float(edges[1] - edges[0])
    drawn = np.random.default_rng(0).integers(0, WINDOWS, (DRAWS, WINDOWS))
    shares = idle[drawn].mean(axis=1) / length * 100
    low, high = np.percentile(np.minimum(shares, 100.0), (2.5, 97.5))
    return float(low), float(high)


def _causes(records: Records, is_late: npt.NDArray[np.bool_], found: Blame) -> tuple[Cause, ...]:
    """From stacks where there are enough, else from the phases that the loop itself noted."""
    if found.samples >= FEWEST_SAMPLES:
        total = sum(entry.seconds for entry in found.entries) or 1.0
        return tuple(
            Cause(
                phase=entry.phase,
                function=entry.function,
                share=entry.seconds / total,
                waits_for_device=entry.waits_for_device,
            )
            for entry in found.entries
        )
    seconds: dict[int, float] = defaultdict(float)
    for record in records[is_late]:
        seconds[int(record["cause"])] += float(record["idle"] + record["gap"])
    total = sum(seconds.values()) or 1.0
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return tuple(
        Cause(phase=NAMES[phase], function=None, share=spent / total) for phase, spent in ranked
    )


def _one_over_length(records: Records) -> float | None:
    """1/L in percent: L is how many decode rows there were for each prefilled one."""
    decode = records["kind"] == layout.KINDS.index("decode")
    prefilled = float(records["rows"][~decode].sum())
    decoded = float(records["rows"][decode].sum())
    return prefilled / decoded * 100 if prefilled and decoded else None


REMEDIES = {
    "receive": "take {function} off the scheduler's thread, or make it rarer: it delays every row",
    "plan": "make {function} cheaper: it runs before every launch",
    "launch": "make {function} cheaper; CUDA graphs shorten a launch most",
    "chores": "let {function} run when the device has time left",
    "commit": "make {function} cheaper, or batch what it sends (--stream-interval)",
    "sample": "constrained rows wait for {function}: a faster grammar backend, or fewer of them",
}


def _advice(
    part: Part,
    records: Records,
    is_late: npt.NDArray[np.bool_],
    causes: Sequence[Cause],
    unfed_pct: float,
) -> tuple[str, ...]:
    found: list[str] = []
    waited = part.meta.get("core_wait_pct") or 0.0
    if causes and waited > STARVED_PCT:
        found.append("give the scheduler a core of its own: it often had none when it wanted one")
    if causes:
        first = causes[0]
        function = first.function or "what it does"
        if first.waits_for_device:
            found.append(f"do not wait for the device in {function}: let the commit wait")
        elif first.phase in REMEDIES:
            found.append(REMEDIES[first.phase].format(function=function))
        if part.facts.get("loop") in ("blocking", "sglang"):
            found.append("serve with --photon-loop photon, which launches before it commits")
    settled = Counter(int(number) for number in records[is_late]["settled"] if number)
    settled += Counter(int(number) for number in records[is_late]["lockstep"] if number)
    for number, count in settled.most_common(2):
        if count >= SETTLED_SHARE * max(1, int(is_late.sum())) and number <= len(part.reasons):
            found.append(f"overlap was given up in {count} steps: {part.reasons[number - 1]}")
    if unfed_pct > 10:
        found.append(
            f"send more at once: for {unfed_pct:.0f} % of the time nothing was there to run"
        )
    return tuple(found) or ("nothing",)


def _notes(recording: Recording, part: Part) -> tuple[str, ...]:
    found: list[str] = []
    lane = part.facts.get("lane")
    if lane == "inline":
        found.append(
            "forwards run on the scheduler's own thread here, so nothing can overlap them: all "
            "host work is idle time of the device"
        )
    if lane == "thread":
        found.append("forwards run in a thread beside the host and share its cores and the GIL")
    waited = part.meta.get("core_wait_pct")
    if waited is not None and waited > BUSY_CORES_PCT:
        found.append(
            f"the scheduler's thread waited {waited:.0f} % of the time for a core: other processes "
            "on this machine make bubbles too"
        )
    if part.meta.get("missed_steps"):
        found.append(f"{part.meta['missed_steps']} steps were not seen")
    if part.samples is None or not part.samples.threads:
        found.append("no stacks: causes are phases only")
    if "biased" in recording.meta["sampler"]:
        found.append(recording.meta["sampler"])
    return tuple(found)
