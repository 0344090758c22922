"""The loop's meter in a scheduler: what it says about itself, and where its counters go."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang.srt.managers.io_struct import ProfileReqOutput, ProfileReqType
from sglang.srt.runtime_context import get_parallel

from sglang_photon.observe.export import PrometheusExport
from sglang_photon.observe.meter import StepMeter
from sglang_photon.observe.sampler import StackSampler

STACKS = "PHOTON_STACKS"
"""Activity of `/start_profile` for which a scheduler samples its own Python stacks."""

ASKED = re.compile(r"(\d+)/s for ([\d.]+) s")


def make_meter(scheduler: Any, *, lane: str) -> StepMeter:
    """A meter for a loop that is about to run.

    Args:
        scheduler: fully constructed; its metrics, if it has any, take the counters.
        lane: name of the lane, from which a reader knows how the device's times were taken.
    """
    meter = StepMeter()
    parallel = get_parallel()
    meter.ring.describe(
        {
            **scheduler.photon_state(),
            "lane": lane,
            "device": scheduler.device,
            "tp_size": parallel.tp_size,
            "tp_rank": parallel.tp_rank,
            "pp_rank": parallel.pp_rank,
            "dp_rank": parallel.dp_rank,
            "model": scheduler.model_config.model_path,
        }
    )
    if scheduler.photon_export is not None:
        meter.export_to(scheduler.photon_export)
    return meter


def make_export(scheduler: Any) -> PrometheusExport | None:
    """The loop's counters among SGLang's metrics; None where this scheduler has no metrics."""
    context = scheduler.metrics_collector_context
    if not context.current_scheduler_metrics_enabled:
        return None
    state = scheduler.photon_state()
    return PrometheusExport(
        labels=context.collector.labels, loop=state["loop"], reason=state["reason"]
    )


def with_stacks(profile: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Upstream's handler of profile requests, which also knows the activity `STACKS`.

    Args:
        profile: handles everything else.
    """

    def handle(request: Any) -> Any:
        wanted = request.activities or []
        if STACKS not in wanted or request.req_type is not ProfileReqType.START_PROFILE:
            return profile(request)
        asked = ASKED.fullmatch(request.profile_prefix or "")
        folder = Path(request.output_dir or "")
        if asked is None or not folder.is_dir():
            return ProfileReqOutput(
                success=False, message="Stacks are asked for by `photon profile --in-process`"
            )
        StackSampler(
            file=folder / f"{os.getpid()}.json", rate=int(asked[1]), seconds=float(asked[2])
        )
        return ProfileReqOutput(success=True, message="Sampling")

    return handle
