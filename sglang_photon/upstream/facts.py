"""Read from a scheduler what decides about its loop, and build what the loop runs on."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_exec, get_memory, get_parallel
from sglang.srt.utils.common import DynamicGradMode

from sglang_photon.errors import UsageError
from sglang_photon.loop.eligibility import LoopFacts
from sglang_photon.slots.lane import CudaLane, InlineLane, Lane, ThreadLane
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.state import SLOTS


def loop_facts(scheduler: Any) -> LoopFacts:
    """What `choose_loop` needs to know about a scheduler that has been constructed."""
    parallel, features = get_parallel(), get_exec().features
    return LoopFacts(
        overlap=scheduler.enable_overlap or scheduler.enable_overlap_mlx,
        speculative=not scheduler.spec_algorithm.is_none(),
        pipeline_parallel=parallel.pp_size > 1,
        disaggregated=scheduler.disaggregation_mode.value != "null",
        diffusion=scheduler.dllm_config is not None,
        multiplexed=scheduler.enable_pdmux,
        hisparse=scheduler.enable_hisparse,
        attention_data_parallel=scheduler.require_mlp_sync or parallel.attn_dp_enabled,
        context_parallel=parallel.attn_cp_size > 1,
        two_batch_overlap=get_exec().overlap.enable_two_batch_overlap,
        hierarchical_cache=scheduler.enable_hierarchical_cache,
        external_cache=bool(
            scheduler.enable_lmcache
            or scheduler.enable_unified_cache_external_linker
            or get_memory().enable_flexkv
        ),
        unified_memory=scheduler.enable_unified_memory,
        state_space=scheduler.is_hybrid_ssm,
        sliding_window_pool=scheduler.is_hybrid_swa,
        encoder_decoder=scheduler.model_config.is_encoder_decoder,
        ngram_embedding=scheduler.use_ngram_embedding,
        watermark=features.enable_watermark,
        routed_experts=features.enable_return_routed_experts,
        elastic_experts=get_exec().moe.elastic_ep_backend is not None,
        confidential_computing=scheduler.enable_async_d2h_copy,
        forward_metrics=scheduler.enable_fpm,
        mlx=scheduler.enable_overlap_mlx,
        scripted=scheduler.scripted_scheduler_hook is not None,
        unmeasured_device=scheduler.device != "cpu",
    )


def lane_for(scheduler: Any, wanted: str) -> Lane:
    """The lane for a scheduler's device.

    Args:
        scheduler: whose streams a CUDA lane uses.
        wanted: `auto`, `cuda`, `inline` or `thread`.

    Raises:
        UsageError: the lane does not fit the device.
    """
    on_cpu = scheduler.device == "cpu"
    name = ("inline" if on_cpu else "cuda") if wanted == "auto" else wanted
    if (name == "cuda") == on_cpu:
        raise UsageError(
            f"--photon-lane {name} does not run on the device {scheduler.device}",
            "Leave --photon-lane out",
        )
    if name == "cuda":
        return CudaLane(
            compute=scheduler.forward_stream,
            copies=scheduler.copy_stream,
            cuda=scheduler.device_module,
            slots=SLOTS,
        )
    return ThreadLane(enter=DynamicGradMode) if name == "thread" else InlineLane()


def make_slots(scheduler: Any) -> tuple[DecodeSlot, ...]:
    """The working sets, for as many rows as the scheduler can have requests at once."""
    rows = scheduler.req_to_token_pool.size + 1
    pinned = scheduler.device == "cuda"
    return tuple(
        DecodeSlot.allocate(index=index, max_rows=rows, pinned=pinned, device=scheduler.device)
        for index in range(SLOTS)
    )
