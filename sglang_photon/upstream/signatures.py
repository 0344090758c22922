"""What Photon overrides or calls in SGLang, and the parameters it expects to find there.

A subclass that overrides a method whose parameters have changed fails late and oddly. This table
is compared with the running SGLang before a scheduler starts, and by the contract tests.
"""

from __future__ import annotations

import inspect
import pkgutil

from sglang_photon.errors import PhotonError

ENTRY = {
    "sglang.srt.managers.scheduler:Scheduler.__init__": ("self", "server_args", "port_args"),
    "sglang.srt.managers.scheduler:Scheduler.get_init_info": ("self",),
    "sglang.srt.managers.scheduler:Scheduler.run_event_loop": ("self",),
    "sglang.srt.managers.scheduler:configure_scheduler_process": (
        "server_args",
        "gpu_id",
        "display_tp_rank",
        "display_dp_rank",
        "display_moe_ep_rank",
    ),
}
LOOP = {
    f"sglang.srt.{path}": names
    for path, names in {
        "managers.overlap_utils:resolve_forward_inputs": ("batch", "future_map"),
        "managers.schedule_batch:ScheduleBatch.copy": ("self",),
        "managers.schedule_batch:ScheduleBatch.check_decode_mem": ("self", "selected_indices"),
        "managers.schedule_batch:ScheduleBatch.cumulate_penalty_output_tokens": ("self",),
        "managers.schedule_batch:release_kv_cache": ("req", "tree_cache", "checkpoint"),
        "managers.scheduler:release_kv_cache": ("req", "tree_cache", "checkpoint"),
        "managers.scheduler_components.batch_result_processor:release_kv_cache": (
            "req",
            "tree_cache",
            "checkpoint",
        ),
        "managers.scheduler:Scheduler._apply_war_barrier": ("self",),
        "managers.scheduler:Scheduler._record_scheduler_state_for_paused_engine": ("self",),
        "managers.scheduler:Scheduler._relay_forward_payload": (
            "self",
            "batch",
            "future_indices",
            "batch_result",
        ),
        "managers.scheduler:Scheduler._reqs_finishing_inflight": ("self", "batch"),
        "managers.scheduler:Scheduler.event_loop_normal": ("self",),
        "managers.scheduler:Scheduler.event_loop_overlap": ("self",),
        "managers.scheduler:Scheduler.get_next_batch_to_run": (
            "self",
            "running_batch",
            "last_batch",
        ),
        "managers.scheduler:Scheduler.init_profiler": ("self",),
        "managers.scheduler:Scheduler.ingest_requests": ("self", "stop_at_pause"),
        "managers.scheduler:Scheduler.is_fully_idle": (
            "self",
            "for_health_check",
            "ignore_waiting",
        ),
        "managers.scheduler:Scheduler.launch_batch_sample_if_needed": (
            "self",
            "batch_result",
            "cur_batch",
        ),
        "managers.scheduler:Scheduler.on_idle": ("self",),
        "managers.scheduler:Scheduler.pause_generation": ("self", "recv_req"),
        "managers.scheduler:Scheduler.process_batch_result": ("self", "batch", "result"),
        "managers.scheduler:Scheduler.process_input_requests": ("self", "recv_reqs"),
        "managers.scheduler:Scheduler.run_batch": ("self", "batch", "pp_proxy_tensors"),
        "managers.scheduler:Scheduler.update_running_batch": ("self", "batch"),
        "managers.scheduler_components.profiler_manager:SchedulerProfilerManager._profile": (
            "self",
            "recv_req",
        ),
        "managers.tp_worker:BaseTpWorker.forward_batch_embedding": ("self", "batch"),
        "managers.utils:EmbeddingBatchResult.copy_to_cpu": ("self",),
        "managers.utils:GenerationBatchResult.copy_to_cpu": (
            "self",
            "return_logprob",
            "return_hidden_states",
        ),
        "managers.utils:GenerationBatchResult.get_num_generated_tokens": ("self", "batch_size"),
        "sampling.sampling_batch_info:SamplingBatchInfo.copy_for_forward": ("self",),
        "sampling.sampling_batch_info:SamplingBatchInfo.update_penalties": ("self",),
    }.items()
}
SCHEDULER_PROCESS = {**ENTRY, **LOOP}
LAUNCHER = {
    "sglang.srt.plugins:load_plugins": (),
    "sglang.srt.plugins.hook_registry:HookRegistry.register": (
        "target",
        "hook",
        "hook_type",
        "source",
    ),
    "sglang.srt.server_args:prepare_server_args": ("argv",),
    "sglang.srt.server_args:ServerArgs.add_cli_args": ("parser",),
    "sglang.launch_server:run_server": ("server_args",),
    "sglang.srt.utils:kill_process_tree": (
        "parent_pid",
        "include_parent",
        "skip_pid",
        "wait_timeout",
    ),
}
AFTER_START = {
    "sglang.srt.entrypoints.http_server:get_global_state": (),
}
"""Called when a server ends. Checked by `photon doctor` and the contract tests only: importing this
before SGLang has resolved its arguments would change what it reads from the environment."""
ALL = {**SCHEDULER_PROCESS, **LAUNCHER, **AFTER_START}


def mismatches(expected: dict[str, tuple[str, ...]]) -> list[str]:
    """Compare a table with the SGLang that is installed; one sentence per difference."""
    found = (_mismatch(path, names) for path, names in expected.items())
    return [text for text in found if text is not None]


def check_signatures(expected: dict[str, tuple[str, ...]] = SCHEDULER_PROCESS) -> None:
    """Refuse to start on an SGLang whose seams differ from the table.

    Raises:
        PhotonError: a callable is missing or its parameters differ; lists all of them.
    """
    found = mismatches(expected)
    if found:
        raise PhotonError(
            "SGLang's internals differ from what sglang-photon is built for: " + "; ".join(found),
            "Install the SGLang release that `photon doctor` names",
        )


def _mismatch(path: str, names: tuple[str, ...]) -> str | None:
    try:
        target = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        return f"{path} is missing ({error})"
    found = tuple(inspect.signature(target).parameters)
    return None if found == names else f"{path} takes {found}, expected {names}"
