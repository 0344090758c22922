"""Ray actors get the same scheduler (runs where Ray is installed; it is no dependency of ours)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sglang_photon import reference

pytestmark = pytest.mark.timeout(300)
pytest.importorskip("ray", reason="Ray is an optional part of SGLang")

ACTOR = """
import ray, sys
import sglang.srt.ray.scheduler_actor as upstream
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import PortArgs, prepare_server_args
from sglang_photon.reference.models import names
load_plugins()
model = names.resolve("demo:random:qwen2").path
arguments = prepare_server_args(["--model-path", model, "--device", "cpu",
    "--attention-backend", "torch_native", "--max-total-tokens", "256"])
arguments.resolve_once()
ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=True)
actor = upstream.SchedulerActor.options(num_cpus=0, num_gpus=0).remote(
    server_args=arguments, port_args=PortArgs.init_new(arguments), gpu_id=0, tp_rank=0, pp_rank=0,
    dp_rank=None)
print("PHOTON", ray.get(actor.get_info.remote(), timeout=120).get("photon"))
ray.kill(actor)
ray.shutdown()
"""


def test_a_ray_actor_constructs_photons_scheduler() -> None:
    variables = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PHOTON": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", ACTOR],
        env={**variables, **reference.child_environment(variables)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "PHOTON {'version'" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-3000:]
