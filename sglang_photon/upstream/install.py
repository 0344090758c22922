"""Put `PhotonScheduler` in place of SGLang's scheduler, and prove that it is there.

SGLang's plugin framework imports and applies hooks defensively: whatever fails is logged, and the
server starts without it. Photon must not be served unpatched under its own name, so a second hook,
on a function that every scheduler process calls after the plugins are loaded, checks the class.
"""

from __future__ import annotations

import importlib.util
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
ARGUMENTS = "sglang.srt.server_args.prepare_server_args"


def install(config: PhotonConfig) -> None:
    """Register the hooks of this process; SGLang applies them when all plugins have run.

    Does nothing in processes that do not run a scheduler (their module is not loaded there).

    Raises:
        PhotonError: the wrong SGLang, or one whose internals have moved.
    """
    check_version(allow_other=config.allow_version)
    if not config.stock_loop:
        _install_for_ray(config)
    if SCHEDULER_MODULE not in sys.modules:
        return
    check_signatures()
    from sglang_photon.upstream.metered import MeteredScheduler
    from sglang_photon.upstream.scheduler import PhotonScheduler

    scheduler = MeteredScheduler if config.stock_loop else PhotonScheduler
    HookRegistry.register(f"{SCHEDULER_MODULE}.Scheduler", scheduler, HookType.REPLACE)
    HookRegistry.register(
        f"{SCHEDULER_MODULE}.configure_scheduler_process", _verified, HookType.AROUND
    )


def _install_for_ray(config: PhotonConfig) -> None:
    """Replace Ray's actors as soon as it is known that there will be any."""

    def after_parsing(server_args: Any, *_: Any, **__: Any) -> None:
        # Without Ray installed SGLang says so itself.
        if server_args.use_ray and importlib.util.find_spec("ray"):
            from sglang_photon.upstream import ray_actor

            ray_actor.install(config)

    HookRegistry.register(ARGUMENTS, after_parsing, HookType.AFTER)
    if RAY_MODULE in sys.modules:
        from sglang_photon.upstream import ray_actor

        ray_actor.install(config)


def scheduler_is_photon() -> bool:
    """Whether this process would construct a scheduler of Photon's."""
    from sglang_photon.upstream.metered import MeteredScheduler

    return issubclass(sys.modules[SCHEDULER_MODULE].__dict__["Scheduler"], MeteredScheduler)


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
