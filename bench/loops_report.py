"""What `photon bench loops` shows: the prediction, the tables on a terminal and in Markdown."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOOPS = ("blocking", "sglang", "photon")
HEADING = "## The loops"
CPUINFO = Path("/proc/cpuinfo")

Row = dict[str, object]
Extras = dict[str, list[Row]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One loop on one load; medians over the repetitions.

    Attributes:
        loop: which.
        batch: rows decoded at once.
        step_ms: the device's time for a step, as asked for.
        stream: whether every token is sent at once.
        wall_us: between two steps.
        host_us: CPU time of the scheduler's thread per step, waiting left out.
        device_us: the time for which the device was busy, per step.
        idle_pct: of the time, the device idle.
        tok_s: tokens per second.
        zombie_pct: of the launched rows, those that had ended; None where the loop does not count.
    """

    loop: str
    batch: int
    step_ms: float
    stream: bool
    wall_us: float
    host_us: float
    device_us: float
    idle_pct: float
    tok_s: float
    zombie_pct: float | None


def median_cell(cells: Sequence[Cell]) -> Cell:
    """The same cell of several repetitions, field by field."""
    first = cells[0]
    zombies = [cell.zombie_pct for cell in cells if cell.zombie_pct is not None]
    return Cell(
        loop=first.loop,
        batch=first.batch,
        step_ms=first.step_ms,
        stream=first.stream,
        wall_us=statistics.median(cell.wall_us for cell in cells),
        host_us=statistics.median(cell.host_us for cell in cells),
        device_us=statistics.median(cell.device_us for cell in cells),
        idle_pct=statistics.median(cell.idle_pct for cell in cells),
        tok_s=statistics.median(cell.tok_s for cell in cells),
        zombie_pct=statistics.median(zombies) if zombies else None,
    )


def ratios(cells: Sequence[Cell]) -> list[Row]:
    """T_block over T_pipe for each load, measured and predicted.

    The prediction knows nothing of the walls: it adds the device's busy time and the CPU time of
    the blocking loop's host, and takes the longer of the two for Photon's loop.
    """
    by_key = {(cell.batch, cell.step_ms, cell.stream, cell.loop): cell for cell in cells}
    rows: list[Row] = []
    for (batch, step_ms, stream, loop), piped in by_key.items():
        blocked = by_key.get((batch, step_ms, stream, "blocking"))
        if loop != "photon" or blocked is None:
            continue
        block_us = blocked.device_us + blocked.host_us
        pipe_us = max(piped.device_us, piped.host_us)
        measured, predicted = blocked.wall_us / piped.wall_us, block_us / pipe_us
        rows.append(
            {
                "batch": batch,
                "step_ms": step_ms,
                "stream": stream,
                "t_block_us": round(blocked.wall_us, 1),
                "t_block_predicted_us": round(block_us, 1),
                "t_pipe_us": round(piped.wall_us, 1),
                "t_pipe_predicted_us": round(pipe_us, 1),
                "measured": round(measured, 3),
                "predicted": round(predicted, 3),
                "off_pct": round((measured / predicted - 1) * 100, 1),
            }
        )
    return rows


def machine() -> str:
    """The processor, its cores and the Python that measured."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(CPUINFO), re.MULTILINE)
    return (
        f"{found.group(1) if found else platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def text(cells: Sequence[Cell], gains: Sequence[Row], extras: Extras) -> str:
    """All figures, for a terminal."""
    lines = ["loop     stream  step ms  batch   wall us   host us  idle %      tok/s  zombies %"]
    for cell in _in_order(cells):
        zombies = "-" if cell.zombie_pct is None else f"{cell.zombie_pct:.2f}"
        lines.append(
            f"{cell.loop:8} {cell.stream!s:6} {cell.step_ms:8g} {cell.batch:6} "
            f"{cell.wall_us:9.0f} {cell.host_us:9.0f} {cell.idle_pct:7.1f} {cell.tok_s:10.0f} "
            f"{zombies:>10}"
        )
    lines.append("\nT_block / T_pipe  stream  step ms  batch  measured  predicted   off %")
    lines += [
        f"{'':17} {gain['stream']!s:6} {gain['step_ms']:8g} {gain['batch']:6} "
        f"{gain['measured']:9} {gain['predicted']:10} {gain['off_pct']:7}"
        for gain in gains
    ]
    for name, rows in extras.items():
        lines.append(f"\n{name}")
        lines += ["  " + ", ".join(f"{key} {_short(row[key])}" for key in row) for row in rows]
    return "\n".join(lines)


def markdown(cells: Sequence[Cell], gains: Sequence[Row], extras: Extras, *, where: str) -> str:
    """All figures as a section of a page, one line for each load."""
    lines = [
        HEADING,
        "",
        (
            "Written by `photon bench loops --md FILE`. The real scheduler on a simulated device; "
            f"medians of repetitions in which the loops take turns. {where}."
        ),
        "",
        "- **wall**: µs from one decode step to the next, blocking / SGLang's overlap / Photon's",
        "- **host**: µs of CPU time of the scheduler's thread per step, in the same order",
        "- **idle**: share of the time in which the device had nothing to do, in the same order",
        (
            "- **ratio**: T_block / T_pipe measured; **model**: predicted as (device busy + host "
            "of the blocking loop) / max(device busy, host of Photon's), each measured by itself"
        ),
        "",
        "| stream | step ms | batch | wall µs | host µs | idle % | ratio | model | off % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    by_load: dict[tuple[bool, float, int], dict[str, Cell]] = {}
    for cell in _in_order(cells):
        by_load.setdefault((cell.stream, cell.step_ms, cell.batch), {})[cell.loop] = cell
    gain_of = {(g["stream"], g["step_ms"], g["batch"]): g for g in gains}
    for (stream, step_ms, batch), found in by_load.items():
        ordered = [found[loop] for loop in LOOPS if loop in found]
        gain = gain_of.get((stream, step_ms, batch), {})
        columns = [
            "yes" if stream else "no",
            f"{step_ms:g}",
            str(batch),
            " / ".join(f"{cell.wall_us:.0f}" for cell in ordered),
            " / ".join(f"{cell.host_us:.0f}" for cell in ordered),
            " / ".join(f"{cell.idle_pct:.1f}" for cell in ordered),
            *(str(gain.get(name, "-")) for name in ("measured", "predicted", "off_pct")),
        ]
        lines.append(f"| {' | '.join(columns)} |")
    for name, rows in extras.items():
        header = list(rows[0])
        lines += ["", f"**{name.replace('_', ' ')}**", "", f"| {' | '.join(header)} |"]
        lines.append(f"|{' --- |' * len(header)}")
        lines += [f"| {' | '.join(_short(row[key]) for key in header)} |" for row in rows]
    return "\n".join(lines) + "\n"


def write_section(path: Path, section: str) -> None:
    """Put a section into a page: in place of the one with the same heading, else at its end."""
    page = path.read_text() if path.exists() else "# Performance\n"
    heading = section.partition("\n")[0]
    before, found, after = page.partition(f"{heading}\n")
    rest = re.search(r"^## ", after, re.MULTILINE) if found else None
    following = "\n" + after[rest.start() :] if rest else ""
    path.write_text(f"{before.rstrip()}\n\n{section.rstrip()}\n{following}")


def _in_order(cells: Sequence[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda c: (c.stream, c.step_ms, c.batch, LOOPS.index(c.loop)))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
