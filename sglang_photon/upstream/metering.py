"""The loop's meter in a scheduler: what it says about itself, and where its counters go."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_parallel

from sglang_photon.observe.export import PrometheusExport
from sglang_photon.observe.meter import StepMeter


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
