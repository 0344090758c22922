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
        "managers.scheduler:Scheduler.release_host_resources": ("self",),
        "managers.scheduler:Scheduler.update_running_batch": ("self", "batch"),
        "managers.scheduler_components.profiler_manager:SchedulerProfilerManager._profile": (
            "self",
            "recv_req",
        ),
        "managers.tp_worker:BaseTpWorker.forward_batch_embedding": ("self", "batch"),
        "managers.utils:EmbeddingBatchResult.copy_to_cpu": ("self",),
        "model_executor.forward_batch_info:ForwardBatch._compute_mrope_positions_decode": (
            "self",
            "model_runner",
            "batch",
        ),
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
ROWS = {
    f"sglang.srt.{owner}.{method}": names
    for owner, methods in {
        "managers.schedule_batch:ScheduleBatch": {
            "prepare_for_decode": ("self",),
            "filter_batch": ("self", "reqs_to_exclude", "keep_indices"),
        },
        "managers.schedule_batch:Req": {
            "update_finish_state": ("self", "new_accepted_len"),
        },
        "mem_cache.allocator.base:BaseTokenToKVPoolAllocator": {
            "check_decode_capacity": (
                "self",
                "num_tokens",
                "tree_cache",
                "requests",
                "spec_algorithm",
            ),
            "available_size": ("self",),
        },
        "mem_cache.allocator.token:TokenToKVPoolAllocator": {
            "alloc": ("self", "need_size"),
            "free": ("self", "free_index"),
        },
        "model_executor.forward_batch_info:ForwardBatch": {
            "init_new": (
                "batch",
                "model_runner",
                "capture_hidden_mode",
                "return_hidden_states_before_norm",
                "extend_position_info",
                "spec_mrope_positions",
                "kv_loc_plan",
                "write_cols",
            ),
        },
        "mem_cache.kv_index_translator:KVIndexTranslator": {
            "own_plan": ("self", "forward_batch", "runner_slots"),
        },
        "mem_cache.kv_loc_plan:KVLocPlan": {
            "bind": ("self", "batch", "reader", "cols"),
        },
        "managers.tp_worker:TpModelWorker": {
            "forward_batch_generation": (
                "self",
                "batch",
                "forward_batch",
                "pp_proxy_tensors",
                "is_verify",
                "skip_attn_backend_init",
                "capture_hidden_mode",
                "return_kv_loc_plan",
            ),
        },
        "managers.scheduler_components.batch_result_processor:SchedulerBatchResultProcessor": {
            "_normalize_decode_outputs": (
                "self",
                "batch",
                "result",
                "logits_output",
                "next_token_ids",
            ),
            "_handle_finish_state_updated_req": (
                "self",
                "req",
                "batch",
                "result",
                "i",
                "logits_output",
            ),
            "_apply_decode_logprobs": (
                "self",
                "req",
                "i",
                "batch",
                "next_token_id",
                "next_token_logprobs",
                "logits_output",
            ),
            "_append_decode_hidden_states": ("req", "hidden_states", "start", "accept_len"),
            "_accept_grammar_tokens": ("self", "req", "tokens"),
            "_maybe_update_reasoning_tokens": ("self", "req", "next_token_id"),
        },
        "managers.scheduler_components.output_streamer:SchedulerOutputStreamer": {
            "stream_output": ("self", "reqs", "return_logprob", "skip_req"),
        },
        "managers.scheduler_components.output_sender:SenderWrapper": {
            "send_output": ("self", "output", "recv_obj"),
        },
        "managers.scheduler_components.metrics_reporter:SchedulerMetricsReporter": {
            "report_decode_stats": (
                "self",
                "can_run_cuda_graph",
                "running_batch",
                "num_generated_tokens",
            ),
            "log_batch_result_stats": ("self", "batch", "result"),
        },
        "managers.scheduler:Scheduler": {
            "_record_step_counters": ("self", "batch", "result"),
            "_maybe_clear_mm_inputs": ("self", "batch"),
            "maybe_send_health_check_signal": ("self",),
            "publish_load_snapshot": ("self", "force"),
        },
    }.items()
    for method, names in methods.items()
}
INTAKE = {
    f"sglang.srt.{path}": names
    for path, names in {
        "managers.io_struct:msgpack_decode": ("data",),
        "managers.schedule_batch:MultimodalInputs.release_features": ("self",),
        "managers.scheduler:Scheduler._add_request_to_queue": ("self", "req", "is_retracted"),
        "managers.scheduler:Scheduler._get_multimodal_inputs": ("self", "mm_inputs"),
        "multimodal.transport.cuda_ipc:_pool_handle_cache_get_or_open": (
            "cache_key",
            "pool_handle",
        ),
        "multimodal.transport.cuda_ipc:CudaIpcTensorTransportProxy._open_pool_slice": (
            "self",
            "rebuild_device_idx",
        ),
        "multimodal.transport.cuda_ipc:CudaIpcTensorTransportProxy._reconstruct_from_ipc_extra": (
            "self",
            "ipc_extra",
            "use_cache",
            "rebuild_device_idx",
        ),
        "multimodal.transport.cuda_ipc:CudaIpcTensorTransportProxy"
        "._retain_storage_until_stream_completes": ("self", "storage", "device_id"),
        "multimodal.transport.cuda_ipc:CudaIpcTensorTransportProxy.reconstruct_on_target_device": (
            "self",
            "rebuild_device_idx",
            "consumer_count",
            "consumer_rank",
        ),
        "managers.scheduler_components.request_receiver:SchedulerRequestReceiver"
        "._finalize_shm_features": ("self", "recv_reqs"),
        "managers.scheduler_components.request_receiver:SchedulerRequestReceiver._pull_raw_reqs": (
            "self",
        ),
        "managers.scheduler_components.request_receiver:SchedulerRequestReceiver"
        ".unwrap_pickle_wrapper": ("self", "recv_reqs"),
    }.items()
}
TOKENIZER = {
    f"sglang.srt.{path}": names
    for path, names in {
        "managers.mm_utils:discard_shm_features": ("obj",),
        "managers.mm_utils:wrap_shm_features": ("obj",),
        "managers.tokenizer_manager:TokenizerManager._create_tokenized_object": (
            "self",
            "obj",
            "input_text",
            "input_ids",
            "input_embeds",
            "mm_inputs",
            "token_type_ids",
        ),
        "managers.tokenizer_manager:TokenizerManager._send_one_request": ("self", "tokenized_obj"),
        "managers.tokenizer_manager:TokenizerManager.generate_request": ("self", "obj", "request"),
        "managers.tokenizer_manager:TokenizerManager.set_startup_time": ("self", "startup_time"),
        "multimodal.transport.cuda_ipc:MmItemMemoryPool.wrap_tensor": (
            "self",
            "tensor",
            "use_pool_handle_cache",
        ),
        "multimodal.cache:resolve_multimodal_item_hash": (
            "existing_hash",
            "feature",
            "precomputed_embeddings",
            "namespace",
        ),
        "utils.common:get_image_bytes": ("image_file",),
        "utils.common:is_jpeg_with_cuda": ("image_bytes", "gpu_image_decode"),
        "multimodal.processors.base_processor:BaseMultimodalProcessor._load_single_item": (
            "data",
            "modality",
            "frame_count_limit",
            "audio_sample_rate",
            "discard_alpha_channel",
        ),
        "multimodal.processors.base_processor:BaseMultimodalProcessor"
        "._precompute_hashes_before_cpu_transfer": ("self", "mm_items"),
    }.items()
}
"""Checked in the processes of tokenizers, once SGLang has resolved its arguments."""
SCHEDULER_PROCESS = {**ENTRY, **LOOP, **ROWS, **INTAKE}
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
    "sglang.srt.server_args:ServerArgs.resolve_once": ("self",),
    "sglang.launch_server:run_server": ("server_args",),
    "sglang.srt.utils:kill_process_tree": (
        "parent_pid",
        "include_parent",
        "skip_pid",
        "wait_timeout",
    ),
}
RESOLUTION = {
    "sglang.srt.arg_groups.serving_hook:handle_multimodal_feature_transport": ("server_args",),
}
"""Checked when SGLang begins to resolve its arguments."""
AFTER_START = {
    "sglang.srt.entrypoints.http_server:get_global_state": (),
    **{
        f"sglang.srt.managers.tokenizer_manager:TokenizerManager.{name}": names
        for name, names in {
            "_init_req_state": ("self", "obj", "request"),
            "_send_one_request": ("self", "tokenized_obj"),
            "abort_request": ("self", "rid", "abort_all"),
            "create_abort_task": ("self", "obj"),
            "sigterm_watchdog": ("self",),
        }.items()
    },
}
"""Called when a server ends. Checked by `photon doctor` and the contract tests only: importing this
before SGLang has resolved its arguments would change what it reads from the environment."""
ALL = {**SCHEDULER_PROCESS, **TOKENIZER, **LAUNCHER, **RESOLUTION, **AFTER_START}


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
