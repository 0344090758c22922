"""Put `PhotonScheduler` in place of SGLang's scheduler, and prove that it is there.

SGLang's plugin framework imports and applies hooks defensively: whatever fails is logged, and the
server starts without it. Photon must not be served unpatched under its own name, so a second hook,
on a function that every scheduler process calls after the plugins are loaded, checks the class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_photon.config import PhotonConfig
from sglang_photon.errors import PhotonError, refuse
from sglang_photon.upstream.discovery import PLUGIN_NAME
from sglang_photon.upstream.signatures import check_signatures
from sglang_photon.upstream.version import check_version

SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
RAY_MODULE = "sglang.srt.ray.scheduler_actor"


def install(config: PhotonConfig) -> None:
    """Register the hooks of this process; SGLang applies them when all plugins have run.

    Does nothing in processes that do not run a scheduler (their module is not loaded there).

    Raises:
        PhotonError: the wrong SGLang, or one whose internals have moved.
    """
    check_version(allow_other=config.allow_version)
    if "--use-ray" in sys.argv or RAY_MODULE in sys.modules:
        from sglang_photon.upstream import ray_actor

        ray_actor.install(config)
    if SCHEDULER_MODULE not in sys.modules:
        return
    check_signatures()
    from sglang_photon.upstream.scheduler import PhotonScheduler

    HookRegistry.register(f"{SCHEDULER_MODULE}.Scheduler", PhotonScheduler, HookType.REPLACE)
    HookRegistry.register(
        f"{SCHEDULER_MODULE}.configure_scheduler_process", _verified, HookType.AROUND
    )


def scheduler_is_photon() -> bool:
    """Whether this process would construct Photon's scheduler."""
    from sglang_photon.upstream.scheduler import PhotonScheduler

    return sys.modules[SCHEDULER_MODULE].__dict__["Scheduler"] is PhotonScheduler


def _verified(configure: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    if not scheduler_is_photon():
        refuse(
            PhotonError(
                "Photon's scheduler is not in place in this scheduler process",
                "See the plugin messages above; another plugin may replace the scheduler too: "
                f"set SGLANG_PLUGINS={PLUGIN_NAME}",
            )
        )
    configure(*args, **kwargs)
