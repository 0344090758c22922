"""The roofline of a recording's model, with the measured decode step on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sglang_photon.errors import PhotonError
from sglang_photon.observe import layout
from sglang_photon.profiling.folder import Part
from sglang_photon.profiling.verdict import Verdict, timed


def draw_roof(part: Part | None, verdict: Verdict, *, gpu: str | None) -> tuple[str | None, str]:
    """The drawing, or None and why there is none.

    Args:
        part: the scheduler's part of a recording; its facts name the model.
        verdict: of the recording; without device times there is no point to draw.
        gpu: as `photon roofline --gpu` takes it.
    """
    from sglang_photon.profiling.roofline import analysis, ceiling, config_file, gpus, plot

    if gpu is None:
        return None, "Name the GPU (photon profile report FOLDER --gpu NAME) for a roofline."
    model = None if part is None else part.facts.get("model")
    if part is None or not model or verdict.bubbles is None:
        return None, "Without device times and a model there is no measured point."
    records = timed(part)
    decode = records[records["kind"] == layout.KINDS.index("decode")]
    if not len(decode):
        return None, "No decode step was recorded."
    try:
        machine = ceiling.Machine(
            gpu=gpus.measured_gpu(gpu), count=int(part.facts.get("tp_size", 1))
        )
        answer = analysis.analyse(
            config_file.load(Path(model)),
            machine,
            analysis.Question(
                batch=max(1, round(float(np.median(decode["rows"])))),
                context=1,
                step_seconds=float(np.median(decode["end"] - decode["start"])),
            ),
        )
        return plot.draw(answer), ""
    except PhotonError as error:
        return None, str(error)
