"""The tables and the bar chart of `photon bench host`."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from sglang_photon.bench.host_samples import GOALS, LOOPS, Load, Results, Sample
from sglang_photon.errors import UsageError

BEGIN = "<!-- photon bench host: written by the tool -->"
END = "<!-- photon bench host: end -->"

COLORS = {"blocking": "#9aa0a6", "sglang": "#d9822b", "photon": "#2b6cb0"}
BAR, GAP, LEFT, RIGHT, TOP = 14, 12, 330, 110, 60
WIDTH = 1100

COLUMNS = (
    "load",
    "loop",
    "host µs (IQR)",
    "mask µs",
    "runner µs",
    "wall µs",
    "idle %",
    "tokens/s",
    "p50 ms",
    "p99 ms",
    "host x",
    "tokens x",
)

LEGEND = (
    "{count} repetitions, loops in turn; medians. `host x` and `tokens x`: how much better than "
    "SGLang's overlap loop, the median over the repetitions, and the least and the most."
)


def tables(results: Results) -> str:
    """Everything that was measured, as Markdown that can be read as it is."""
    goals = _goals(results)
    parts = [
        "\n".join(sorted(results.machines)),
        LEGEND.format(count=_count(results)),
        _table(COLUMNS, [row for load in results.loads for row in _rows(results, load)]),
    ]
    if goals:
        parts.append(_table(("load", "figure", "asked", "measured", ""), goals))
    worse = [f"- {load}: {figure} {ratio}" for load, figure, ratio in results.worse()]
    if any(results.ratio(load, "tokens") for load in results.loads):
        parts.append(
            "Worse than SGLang's overlap loop in every repetition, by more than 1 %: "
            + ("none." if not worse else "\n\n" + "\n".join(worse))
        )
    return "\n\n".join(parts)


def write_section(path: Path, results: Results) -> None:
    """Write the tables between the marks of a file, or the file if there is none.

    Raises:
        UsageError: the file is there, and has no marks.
    """
    section = f"{BEGIN}\n\n{tables(results)}\n\n{END}"
    if not path.exists():
        path.write_text(section + "\n")
        return
    text = path.read_text()
    marked = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    if not marked.search(text):
        raise UsageError(f"{path} has no section for this table", f"Put {BEGIN} and {END} into it")
    path.write_text(marked.sub(lambda _: section, text))


def machine() -> str:
    """What it was measured on."""
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {version(name)}" for name in ("sglang", "torch"))
    return (
        f"{_processor()}, {cores} cores, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, {versions}; simulated device."
    )


def draw(path: Path, results: Results) -> None:
    """Bars of host time per step, of each load and loop, as a PNG."""
    from PIL import Image, ImageDraw, ImageFont

    cells = [
        (load, [cell for loop in LOOPS if (cell := results.median(load, loop))])
        for load in results.loads
    ]
    height = TOP + sum(len(found) * BAR + GAP for _, found in cells) + GAP
    image = Image.new("RGB", (WIDTH, height), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size=12)
    pen.text((GAP, GAP), "Host time of the scheduler per step, in microseconds", "black", font=font)
    for number, (loop, color) in enumerate(COLORS.items()):
        at = LEFT + number * 110
        pen.rectangle((at, 34, at + BAR, 34 + BAR - 2), fill=color)
        pen.text((at + BAR + 6, 32), loop, "black", font=font)
    most = max((cell.host_us for _, found in cells for cell in found), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / most
    y = TOP
    for load, found in cells:
        pen.text((GAP, y + (len(found) - 1) * BAR / 2 - 2), str(load), "black", font=font)
        for cell in found:
            end = LEFT + cell.host_us * scale
            pen.rectangle((LEFT, y, end, y + BAR - 2), fill=COLORS[cell.loop])
            pen.text((end + 5, y - 2), f"{cell.host_us:.0f}", "black", font=font)
            y += BAR
        y += GAP
    image.save(path, format="PNG")


def _rows(results: Results, load: Load) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for loop in LOOPS:
        cell = results.median(load, loop)
        if cell is None:
            continue
        ours = loop == "photon"
        host, tokens = (results.ratio(load, name) if ours else None for name in ("host", "tokens"))
        rows.append(
            (
                str(load),
                loop,
                f"{cell.host_us:.0f} ({results.spread(load, loop, 'host_us'):.0f})",
                *_figures(cell),
                "" if host is None else str(host),
                "" if tokens is None else str(tokens),
            )
        )
    return rows


def _figures(cell: Sample) -> tuple[str, ...]:
    return (
        "-" if cell.mask_us is None else f"{cell.mask_us:.0f}",
        "-" if cell.runner_us is None else f"{cell.runner_us:.0f}",
        f"{cell.wall_us:.0f}",
        f"{cell.idle_pct:.1f}",
        f"{cell.tok_s:.0f}",
        f"{cell.itl_p50_ms:.2f}",
        f"{cell.itl_p99_ms:.2f}",
    )


def _goals(results: Results) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for goal in GOALS:
        value = results.value(goal)
        if value is None:
            continue
        idle = goal.figure == "idle"
        rows.append(
            (
                str(goal.load),
                {"host": "host time", "tokens": "tokens/s", "idle": "device idle"}[goal.figure],
                f"≤ {goal.bound:g} %" if idle else f"{goal.bound:g}x better",
                f"{value:.1f} %" if idle else f"{value:.1f}x",
                "" if goal.met(value) else "missed",
            )
        )
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _count(results: Results) -> str:
    samples = results.samples
    counts = {
        sum(other.load == one.load and other.loop == one.loop for other in samples)
        for one in samples
    }
    return "-".join(map(str, sorted({min(counts), max(counts)}))) if counts else "No"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*: (.*)", text)
    return found.group(1).strip() if found else platform.machine()
