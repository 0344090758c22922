"""Everything that is made from a recording's data: stacks, flame graphs, the time line."""

from __future__ import annotations

import json

from sglang_photon.profiling import flame, samples, timeline
from sglang_photon.profiling.folder import Recording


def write_outputs(recording: Recording) -> None:
    """Write the files that other tools read, and the pictures."""
    for part in recording.parts:
        if part.samples is None:
            continue
        stem = recording.path / part.name
        lines = samples.collapse(part.samples)
        stem.with_suffix(".stacks.txt").write_text(
            "".join(f"{line} {count}\n" for line, count in sorted(lines.items()))
        )
        stem.with_suffix(".speedscope.json").write_text(
            json.dumps(samples.speedscope(part.samples, name=part.name))
        )
        stem.with_suffix(".flame.svg").write_text(
            flame.svg(flame.tree(part.samples, name=part.name), title=part.name)
        )
    (recording.path / "timeline.json").write_text(json.dumps(timeline.events(recording)))
