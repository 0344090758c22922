"""`report.html`: a recording for people, in one file that needs nothing from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_photon.errors import PhotonError
from sglang_photon.observe import layout
from sglang_photon.observe.phases import NAMES
from sglang_photon.profiling import flame, samples
from sglang_photon.profiling.compare import PER_STEP, Row, compare
from sglang_photon.profiling.folder import Part, Recording
from sglang_photon.profiling.phases import HOST, phase_of, scheduler_thread, shares
from sglang_photon.profiling.roof import draw_roof
from sglang_photon.profiling.verdict import Verdict, judge, timed
from sglang_photon.profiling.wording import lines

PAGE = Path(__file__).with_name("page.html")
PLACE = "/*DATA*/"
MAX_IDLE_PCT = 2.0
SMALLEST = 0.0005
"""Share of the whole below which a call is left out of the page's flame graph."""

SHOWN_STEPS = 120


def write_report(
    recording: Recording,
    *,
    before: Recording | None = None,
    file: Path | None = None,
    max_idle_pct: float = MAX_IDLE_PCT,
    gpu: str | None = None,
) -> Path:
    """Write the page.

    Args:
        recording: to show.
        before: to show beside it.
        file: where; `report.html` in the recording's folder.
        max_idle_pct: the verdict's limit.
        gpu: for the roofline, as `photon roofline` knows it.

    Returns:
        Where it is.
    """
    data = page_data(recording, before=before, max_idle_pct=max_idle_pct, gpu=gpu)
    # Inside a script element only this could end it.
    text = json.dumps(data).replace("<", "\\u003c")
    target = file or recording.path / "report.html"
    target.write_text(PAGE.read_text(encoding="utf-8").replace(PLACE, text), encoding="utf-8")
    return target


def page_data(
    recording: Recording, *, before: Recording | None, max_idle_pct: float, gpu: str | None
) -> dict[str, Any]:
    """Everything that the page shows."""
    verdict = judge(recording, max_idle_pct=max_idle_pct)
    part = recording.scheduler or (recording.parts[0] if recording.parts else None)
    rows = _rows(recording, before)
    longest = max((max(row["before"] or 0.0, row["after"]) for row in rows), default=1.0)
    tree, differential = _flame(part, None if before is None else before.scheduler)
    drawing, missing = draw_roof(part, verdict, gpu=gpu)
    span = recording.meta["span"]
    cut = ", interrupted" if span["interrupted"] else ""
    return {
        "about": f"{recording.path.name}: {span['seconds']:.1f} s of {span['asked']:g} s{cut}, "
        f"{recording.meta['made']}, {recording.meta['sampler']}",
        "verdict": {"lines": lines(verdict), "state": _state(verdict)},
        "phases": rows,
        "longest": longest or 1.0,
        "steps": _steps(part, recording.span[0]),
        "flame": tree,
        "differential": differential,
        "focus": _focus(part),
        "roofline": drawing,
        "roofline_missing": missing,
        "facts": _facts(recording, part),
    }


def _state(verdict: Verdict) -> str:
    if verdict.bubbles is None:
        return "unknown"
    return "yes" if verdict.bubbles else "no"


def _rows(recording: Recording, before: Recording | None) -> list[dict[str, Any]]:
    """The table of phases; with one recording, it is compared with itself and shown once."""
    try:
        rows = compare(before or recording, recording).rows
    except PhotonError:
        return []
    units = {row.unit for row in rows}
    # Percentages would be bars of another kind beside milliseconds.
    wanted = PER_STEP if PER_STEP in units else "%"
    return [_row(row, alone=before is None) for row in rows if row.unit == wanted]


def _row(row: Row, *, alone: bool) -> dict[str, Any]:
    return {
        "name": row.name,
        "before": None if alone else row.before,
        "after": row.after,
        "unit": row.unit if alone or row.sure else f"{row.unit} (difference unsure)",
    }


def _flame(part: Part | None, before: Part | None) -> tuple[dict[str, Any] | None, bool]:
    if part is None or part.samples is None or not part.samples.threads:
        return None, False
    if before is not None and before.samples is not None:
        tree = flame.difference(samples.collapse(before.samples), samples.collapse(part.samples))
        return tree.to_json(smallest=tree.value * SMALLEST), True
    tree = flame.tree(part.samples, name=part.name)
    return tree.to_json(smallest=tree.value * SMALLEST), False


def _focus(part: Part | None) -> str | None:
    """The box to begin with: the thread that runs the loop."""
    if part is None or part.samples is None or len(part.samples.threads) < 2:
        return None
    thread = scheduler_thread(part.samples)
    return None if thread is None else f"thread {thread.tid}"


def _steps(part: Part | None, zero: float) -> dict[str, Any]:
    """The last steps: host, device and bubbles, in percent of the shown time."""
    nothing = {"note": "This process keeps no step records.", "tracks": [], "span": 1.0}
    if part is None or part.steps is None or not len(timed(part)):
        return nothing
    records = timed(part)[-SHOWN_STEPS:]
    start = float(records["start"][0] - records["idle"][0])
    end = float(records["end"][-1])
    span = end - start

    def box(begin: float, stop: float, name: str) -> list[Any]:
        left, right = max(begin, start), min(stop, end)
        return [round((left - start) / span * 100, 3), round((right - left) / span * 100, 3), name]

    device, bubbles = [], []
    for record in records:
        begin = float(record["start"])
        name = f"{layout.KINDS[record['kind']]}, {record['rows']} rows"
        device.append(box(begin, float(record["end"]), name))
        if record["idle"] > 0:
            rested = record["flags"] & layout.RESTED
            cause = "nothing to run" if rested else f"late: {NAMES[record['cause']]}"
            bubbles.append(box(begin - float(record["idle"]), begin, cause))
    thread = None if part.samples is None else scheduler_thread(part.samples)
    host = [
        box(interval.start, interval.end, phase_of(interval.stack, part.device))
        for interval in (thread.intervals if thread is not None else ())
        if interval.end > start and interval.start < end
    ]
    return {
        "note": f"{len(records)} steps in {span * 1e3:.0f} ms, from {start - zero:.1f} s on",
        "tracks": [
            {"name": "host, by phase", "boxes": host},
            {"name": "device", "boxes": device},
            {"name": "bubbles", "boxes": bubbles},
        ],
        "span": span,
    }


def _facts(recording: Recording, part: Part | None) -> list[tuple[str, str]]:
    meta = recording.meta
    machine = meta["machine"]
    found = [
        ("perturbation", meta["perturbation"]["text"]),
        ("server", f"process {meta['server']['pid']}, {' '.join(meta['server']['command'])}"),
        (
            "machine",
            f"{machine['system']}, {machine['cores']} cores, load {machine['load']:.1f}",
        ),
        ("photon", meta["photon"]),
    ]
    thread = None if part is None or part.samples is None else scheduler_thread(part.samples)
    if part is not None and thread is not None:
        names = ("phases of the stacks", "hot spots")
        found += list(zip(names, shares(thread, part.device), strict=True))
    found += [(name, str(value)) for name, value in (part.facts.items() if part else ())]
    found += [
        (
            entry["name"],
            f"{entry.get('samples')} stacks, {entry.get('errors', 0)} unreadable",
        )
        for entry in meta["parts"]
    ]
    found += [("left out", f"process {pid} ({name})") for pid, name in meta["server"]["skipped"]]
    found.append(("host phases", ", ".join(HOST)))
    return found
