"""What `photon bench host` measures, and the arithmetic on it: medians, spread, ratios, goals."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

LOOPS = ("blocking", "sglang", "photon")


@dataclass(frozen=True, order=True, kw_only=True)
class Load:
    """What a scheduler is given.

    Attributes:
        mode: `steady` (text rows that all decode), `mrope` (the same after a picture each),
            `special` (the same, a quarter each with logprobs, a grammar, penalties and none of
            them), or `churn` (closed-loop clients).
        stream: whether every token is sent at once.
        step_ms: the device's time for a step.
        batch: rows, or clients.
    """

    mode: str
    stream: bool
    step_ms: float
    batch: int

    def __str__(self) -> str:
        what = "clients" if self.mode == "churn" else "rows"
        how = ", streaming" if self.stream else ""
        return f"{self.mode}, {self.batch} {what}, {self.step_ms:g} ms{how}"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One loop under one load, once or as a median.

    Attributes:
        load: which.
        loop: which.
        host_us: CPU time of the scheduler's thread per step; waiting, masks, harness left out.
        wall_us: between two steps.
        idle_pct: of the time, the device idle.
        tok_s: tokens per second.
        itl_p50_ms: between two tokens of a request: chunks where it streams, else the results of
            decode steps as they reach the scheduler.
        itl_p99_ms: the same.
        mask_us: CPU time per step of filling grammar masks; None where no row has a grammar.
        runner_us: host time of the model runner per step; None on a simulated device.
    """

    load: Load
    loop: str
    host_us: float
    wall_us: float
    idle_pct: float
    tok_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    mask_us: float | None = None
    runner_us: float | None = None


FIGURES = ("host_us", "wall_us", "idle_pct", "tok_s", "itl_p50_ms", "itl_p99_ms", "mask_us")


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A figure of Photon's loop beside that of SGLang's overlap loop, repetition by repetition."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"  # noqa: RUF001 - a range


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a load must show.

    Attributes:
        load: which.
        figure: `host` and `tokens` are ratios to SGLang's overlap loop, `idle` is in percent.
        bound: at least; for `idle`, at most.
    """

    load: Load
    figure: str
    bound: float

    def met(self, value: float, *, share: float = 1.0) -> bool:
        """Whether a value reaches the goal, or such a share of it."""
        return value <= self.bound / share if self.figure == "idle" else value >= self.bound * share


def _goal(mode: str, batch: int, figure: str, bound: float, **load: float) -> Goal:
    stream = bool(load.get("stream", 0))
    step_ms = load.get("step_ms", 0.0)
    return Goal(
        load=Load(mode=mode, stream=stream, step_ms=step_ms, batch=batch),
        figure=figure,
        bound=bound,
    )


GOALS = (
    *(
        _goal("steady", rows, "host", least)
        for rows, least in ((1, 5), (16, 5), (64, 7), (256, 10))
    ),
    *(_goal("steady", rows, "host", least, stream=1) for rows, least in ((64, 8), (256, 15))),
    _goal("special", 64, "host", 3),
    *(_goal("churn", clients, "tokens", 2.5) for clients in (16, 64)),
    *(_goal("churn", clients, "tokens", 2.5, stream=1) for clients in (16, 64)),
    _goal("churn", 64, "idle", 3, stream=1, step_ms=1.0),
)


class Results:
    """All repetitions, by load and loop.

    Attributes:
        machines: what they were measured on.
    """

    def __init__(self) -> None:
        self.machines: set[str] = set()
        self._found: dict[tuple[Load, str], list[Sample]] = {}

    def add(self, sample: Sample) -> None:
        """One more."""
        self._found.setdefault((sample.load, sample.loop), []).append(sample)

    @property
    def samples(self) -> list[Sample]:
        """All of them."""
        return [sample for found in self._found.values() for sample in found]

    @property
    def loads(self) -> list[Load]:
        """The loads, in the order of the tables."""
        order = ("steady", "mrope", "special", "churn")
        loads = {load for load, _ in self._found}
        return sorted(loads, key=lambda load: (order.index(load.mode), load))

    def median(self, load: Load, loop: str) -> Sample | None:
        """Figure by figure."""
        found = self._found.get((load, loop))
        if not found:
            return None
        figures: dict[str, Any] = {}
        for name in FIGURES:
            values = [getattr(sample, name) for sample in found]
            figures[name] = None if None in values else statistics.median(values)
        return Sample(load=load, loop=loop, **figures)

    def spread(self, load: Load, loop: str, figure: str) -> float:
        """Between the first and the third quartile."""
        values = [getattr(sample, figure) for sample in self._found[load, loop]]
        if len(values) < 2:
            return 0.0
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        return float(third - first)

    def ratio(self, load: Load, figure: str) -> Ratio | None:
        """SGLang's over Photon's for times, Photon's over SGLang's for tokens: more is better."""
        pairs = self._pairs(load, _FIELDS[figure])
        if not pairs:
            return None
        ratios = [ours / theirs if figure == "tokens" else theirs / ours for theirs, ours in pairs]
        return Ratio(median=statistics.median(ratios), low=min(ratios), high=max(ratios))

    def value(self, goal: Goal) -> float | None:
        """What was measured of a goal's figure."""
        if goal.figure == "idle":
            ours = self.median(goal.load, "photon")
            return None if ours is None else ours.idle_pct
        ratio = self.ratio(goal.load, goal.figure)
        return None if ratio is None else ratio.median

    def worse(self) -> list[tuple[Load, str, Ratio]]:
        """Where Photon's throughput or p99 is worse: by 1 % at least, and in every repetition."""
        found = []
        for load in self.loads:
            for figure in ("tokens", "p99"):
                ratio = self.ratio(load, figure)
                if ratio is not None and ratio.median < 0.99 and ratio.high < 1.0:
                    found.append((load, figure, ratio))
        return found

    def as_json(self) -> dict[str, object]:
        """Medians under `cells`, every repetition under `repetitions`, ratios under `ratios`."""
        cells = []
        for load in self.loads:
            for loop in LOOPS:
                cell = self.median(load, loop)
                if cell is not None:
                    iqr = {"host_us_iqr": self.spread(load, loop, "host_us")}
                    cells.append(flat(cell) | iqr)
        ratios: list[dict[str, object]] = [
            asdict(load) | {"figure": figure, **asdict(ratio)}
            for load in self.loads
            for figure in _FIELDS
            if (ratio := self.ratio(load, figure)) is not None
        ]
        return {
            "machines": sorted(self.machines),
            "cells": cells,
            "ratios": ratios,
            "repetitions": [flat(sample) for sample in self.samples],
        }

    def add_json(self, report: dict[str, Any]) -> None:
        """The repetitions of an earlier run.

        Raises:
            KeyError, TypeError: it is no report of this benchmark.
        """
        self.machines.update(report["machines"])
        names = tuple(Load.__dataclass_fields__)
        for entry in report["repetitions"]:
            load = Load(**{name: entry[name] for name in names})
            rest = {name: value for name, value in entry.items() if name not in names}
            self.add(Sample(load=load, **rest))

    def _pairs(self, load: Load, field: str) -> list[tuple[float, float]]:
        theirs, ours = (
            [getattr(sample, field) for sample in self._found.get((load, loop), ())]
            for loop in ("sglang", "photon")
        )
        return list(zip(theirs, ours, strict=False))


_FIELDS = {"host": "host_us", "tokens": "tok_s", "p50": "itl_p50_ms", "p99": "itl_p99_ms"}


def flat(sample: Sample) -> dict[str, object]:
    """A sample as one level of names and values."""
    fields = asdict(sample)
    load = fields.pop("load")
    return {"loop": fields.pop("loop"), **load, **fields}
