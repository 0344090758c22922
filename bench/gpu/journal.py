"""What a check found, one JSON line for each figure, on the disk as soon as it is known.

A part may be killed at its time limit, and a machine may be taken away: what was measured until
then must be there. The file is also how a later run knows which parts are done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Value = float | int | bool | str | None

NO_CUDA = "not here: no CUDA"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure, or why there is none.

    Attributes:
        part: the part's letter.
        name: what was measured; with a column, under which conditions.
        value: the figure; None where there is none, and `note` says why.
        column: which of several figures of the same conditions; the report makes them a table.
        unit: of the value.
        note: the conditions, where the name does not say them.
    """

    part: str
    name: str
    value: Value
    unit: str = ""
    note: str = ""
    column: str = ""

    def text(self) -> str:
        """The value as a person reads it."""
        if self.value is None:
            return self.note or "none"
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, float):
            return f"{self.value:.4g} {self.unit}".rstrip()
        return f"{self.value} {self.unit}".rstrip()

    def line(self) -> str:
        """One printed line."""
        comment = f"  ({self.note})" if self.note and self.value is not None else ""
        name = f"{self.name}: {self.column}" if self.column else self.name
        return f"{self.part}  {name:<58} {self.text()}{comment}"


@dataclass(frozen=True, kw_only=True)
class End:
    """How a part ended.

    Attributes:
        part: the part's letter.
        outcome: `done`, or why it is not.
        seconds: it took.
    """

    part: str
    outcome: str
    seconds: float

    @property
    def done(self) -> bool:
        """Whether the part need not run again."""
        return self.outcome == "done"


class Journal:
    """The file of a check.

    Args:
        path: JSON lines; made at the first figure, appended to afterwards.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def figure(
        self,
        part: str,
        name: str,
        value: Value,
        unit: str = "",
        note: str = "",
        *,
        column: str = "",
    ) -> None:
        """Print a figure and keep it."""
        found = Figure(part=part, name=name, value=value, unit=unit, note=note, column=column)
        print(found.line(), flush=True)
        self._append({"figure": asdict(found), "at": round(time.time(), 3)})

    def end(self, part: str, outcome: str, seconds: float) -> None:
        """Keep how a part ended."""
        found = End(part=part, outcome=outcome, seconds=round(seconds, 1))
        print(f"{part}  {outcome}, {seconds:.1f} s", flush=True)
        self._append({"end": asdict(found), "at": round(time.time(), 3)})

    def figures(self) -> list[Figure]:
        """Every figure; of those measured several times the last."""
        found = {}
        for record in self._records():
            if "figure" in record:
                figure = Figure(**record["figure"])
                found[figure.part, figure.name, figure.column] = figure
        return list(found.values())

    def names(self, part: str) -> set[str]:
        """What a part has measured so far."""
        return {figure.name for figure in self.figures() if figure.part == part}

    def ends(self) -> dict[str, End]:
        """How each part ended last."""
        return {
            record["end"]["part"]: End(**record["end"])
            for record in self._records()
            if "end" in record
        }

    def _append(self, record: dict[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _records(self) -> Iterator[dict[str, dict[str, Any]]]:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # A line that was cut off with its process.


def markdown(figures: Sequence[Figure], ends: dict[str, End], titles: dict[str, str]) -> str:
    """The figures as Markdown tables, one or two for each part."""
    lines: list[str] = []
    for part, title in titles.items():
        own = [figure for figure in figures if figure.part == part]
        end = ends.get(part)
        if not own and end is None:
            continue
        lines += [f"**{part}. {title}**", ""]
        if end is not None and not end.done:
            lines += [end.outcome, ""]
        lines += _list([figure for figure in own if not figure.column])
        lines += _table([figure for figure in own if figure.column])
    return "\n".join(lines).rstrip()


def _list(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return []
    lines = ["| | | |", "| --- | ---: | --- |"]
    for figure in figures:
        note = figure.note if figure.value is not None else ""
        lines.append(f"| {figure.name} | {figure.text()} | {note} |")
    return [*lines, ""]


def _table(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return []
    columns = list(dict.fromkeys(figure.column for figure in figures))
    by_place = {(figure.name, figure.column): figure.text() for figure in figures}
    lines = [f"| | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for name in dict.fromkeys(figure.name for figure in figures):
        cells = [by_place.get((name, column), "") for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]
