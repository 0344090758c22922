"""A whole server, HTTP and all, whose device is simulated; for benchmarks.

A plugin of SGLang's framework, put beside ours by the benchmark that wants it. In the scheduler
process the lane becomes a `SimLane`; what its clock says goes to a file, several times a second.

    PHOTON_SIM_STEP_MS     of a decode and of a prefill, `10,10`
    PHOTON_SIM_STATE       the file: {"now", "busy", "idle", "forwards"}, in seconds
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

STEP_MS = "PHOTON_SIM_STEP_MS"
STATE = "PHOTON_SIM_STATE"
EVERY_S = 0.1
TOKENS = range(100, 700)
"""Tokens that every demo model knows, none of which ends an answer."""


def load() -> None:
    """Change the scheduler's lane, in the process that has a scheduler."""
    if "sglang.srt.managers.scheduler" not in sys.modules or STATE not in os.environ:
        return
    from sglang_photon.upstream.scheduler import PhotonScheduler

    PhotonScheduler.make_lane = _make_lane


def _make_lane(scheduler: Any) -> Any:
    from sglang_photon.records import StepKind
    from sglang_photon.upstream import sim_worker

    decode_ms, prefill_ms = (float(part) for part in os.environ[STEP_MS].split(","))
    seconds = {StepKind.DECODE: decode_ms / 1e3, StepKind.PREFILL: prefill_ms / 1e3}
    sim_worker.next_token = lambda last, _: TOKENS[0] + (last + 1) % len(TOKENS)
    device = sim_worker.SimDevice(scheduler=scheduler, loop="photon", step_time=seconds.get)
    path = Path(os.environ[STATE])
    threading.Thread(target=_report, args=(device.lane, path), daemon=True).start()
    return device.lane


def _report(lane: Any, path: Path) -> None:
    draft = path.with_suffix(".new")
    while True:
        state = {"now": time.perf_counter(), "busy": lane.busy, "idle": lane.idle}
        draft.write_text(json.dumps({**state, "forwards": lane.forwards}))
        draft.replace(path)
        time.sleep(EVERY_S)
