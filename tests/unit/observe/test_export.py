"""The loop's counters as Prometheus shows them, several processes together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sglang_photon.observe.export import PREFIX

RANK = """
import sys
from sglang_photon.observe.export import PrometheusExport
from sglang_photon.observe.meter import LoopStats
rank = int(sys.argv[1])
export = PrometheusExport(
    labels={"model_name": "demo", "tp_rank": rank}, loop="photon", reason="it is proven"
)
stats = LoopStats(steps=3, prefills=1, rows=12, commits=2, busy_s=0.5, unfed_s=0.25)
stats.late["plan"] += 1
stats.late_s["plan"] += 0.125
stats.settled["the pool is full"] += 1
export.publish(stats)
stats.steps += 1
export.publish(stats)
export.publish(LoopStats(steps=10))
"""

COLLECT = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_two_ranks_on_one_page(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for rank in ("0", "1"):
        subprocess.run([sys.executable, "-c", RANK, rank], env=environ, check=True)
    page = subprocess.run(
        [sys.executable, "-c", COLLECT], env=environ, check=True, capture_output=True, text=True
    ).stdout
    for rank in ("0", "1"):
        for name, value, more in (
            ("steps_total", 1.0, {"kind": "prefill"}),
            # 3 and 1 more of one loop, then 10 of the next.
            ("steps_total", 13.0, {"kind": "decode"}),
            ("rows_total", 12.0, {}),
            ("commits_total", 2.0, {}),
            ("late_steps_total", 1.0, {"cause": "plan"}),
            ("device_idle_seconds_total", 0.125, {"cause": "plan"}),
            ("device_unfed_seconds_total", 0.25, {}),
            ("device_busy_seconds_total", 0.5, {}),
            ("settled_total", 1.0, {"reason": "the pool is full"}),
            ("slots_in_flight", 10.0, {}),
            ("loop", 1.0, {"loop": "photon", "reason": "it is proven"}),
        ):
            labels = {"model_name": "demo", "tp_rank": rank, **more}
            text = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            assert f"{PREFIX}{name}{{{text}}} {value}\n" in page
