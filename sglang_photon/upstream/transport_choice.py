"""Which way pictures go from the tokenizer to the scheduler, where nobody has said it.

SGLang's own choice is host memory for all models but one. On one machine with a CUDA device, a pool
on the device saves the copies and most of the scheduler's work per picture.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.arg_groups import serving_hook
from sglang.srt.arg_groups.overrides import declare_resolution, model_config_of, resolving_view
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_platform

from sglang_photon.upstream.signatures import RESOLUTION, check_signatures

logger = logging.getLogger(__name__)

TRANSPORT = "cuda_ipc"
RESOLVE = serving_hook.handle_multimodal_feature_transport


def install() -> None:
    """Have SGLang's resolution ask us first, in this process."""
    if serving_hook.handle_multimodal_feature_transport is _resolve:
        return
    check_signatures(RESOLUTION)
    serving_hook.handle_multimodal_feature_transport = _resolve


def _resolve(server_args: Any) -> None:
    if _is_open(server_args):
        logger.info(
            "sglang-photon: --mm-feature-transport is %s, which reserves %d MiB of GPU %d for "
            "images (SGLANG_MM_FEATURE_CACHE_MB); --mm-feature-transport cpu reserves none",
            TRANSPORT,
            envs.SGLANG_MM_FEATURE_CACHE_MB.get(),
            resolving_view(server_args).base_gpu_id,
        )
        declare_resolution(server_args, "sglang-photon", mm_feature_transport=TRANSPORT)
    RESOLVE(server_args)


def _is_open(server_args: Any) -> bool:
    cfg = resolving_view(server_args)
    return bool(
        cfg.mm_feature_transport is None
        and not envs.SGLANG_USE_CUDA_IPC_TRANSPORT.is_set()
        and not cfg.encoder_only
        and cfg.disaggregation_mode == "null"
        and cfg.nnodes == 1
        and cfg.pp_size == 1
        and get_platform().is_cuda
        and model_config_of(server_args).is_multimodal
    )
