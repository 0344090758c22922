"""Put `PhotonScheduler` in place of SGLang's scheduler, and prove that it is there.

SGLang's plugin framework imports and applies hooks defensively: whatever fails is logged, and the
server starts without it. Photon must not be served unpatched under its own name, so a second hook,
on a function that every scheduler process calls after the plugins are loaded, checks the class.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
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
RESOLVED = "sglang.srt.server_args.ServerArgs.resolve_once"
TOKENIZER_MODULE = "sglang.srt.managers.tokenizer_manager"
HTTP_MODULE = "sglang.srt.entrypoints.http_server"
APPLICATION = "SGLANG_HTTP_SERVER_APP_PATH"
WORKER_APPLICATION = "sglang_photon.upstream.http_app:app"


def install(config: PhotonConfig) -> None:
    """Register the hooks of this process; SGLang applies them when all plugins have run.

    Does nothing in processes that do not run a scheduler (their module is not loaded there).

    Raises:
        PhotonError: the wrong SGLang, or one whose internals have moved.
    """
    check_version(allow_other=config.allow_version)
    if not config.stock_loop:
        _install_after_parsing(config)
        _install_for_tokenizers(config)
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


def _install_after_parsing(config: PhotonConfig) -> None:
    """In the process that parses the arguments, the main one: its clients, and Ray's actors."""

    def after_parsing(server_args: Any, *_: Any, **__: Any) -> None:
        from sglang_photon.upstream import clients

        clients.install(shutdown_seconds=config.shutdown_limit)
        # Without Ray installed SGLang says so itself.
        if server_args.use_ray and importlib.util.find_spec("ray"):
            from sglang_photon.upstream import ray_actor

            ray_actor.install(config)

    HookRegistry.register(ARGUMENTS, after_parsing, HookType.AFTER)
    if RAY_MODULE in sys.modules:
        from sglang_photon.upstream import ray_actor

        ray_actor.install(config)


def _install_for_tokenizers(config: PhotonConfig) -> None:
    """Change SGLang's tokenizer where it runs: in the main process, or in workers of its own.

    Not before SGLang has resolved its arguments: that sets variables which its modules read while
    they load.
    """

    def after_resolving(_: Any, *__: Any, **___: Any) -> None:
        if multiprocessing.parent_process() is None or TOKENIZER_MODULE in sys.modules:
            from sglang_photon.upstream import admission, tokenizing

            tokenizing.install(config)
            # SGLang resolves twice: before it imports its HTTP server, and when that starts.
            if HTTP_MODULE in sys.modules:
                admission.add_middleware(sys.modules[HTTP_MODULE].app)

    def before_resolving(*_: Any, **__: Any) -> None:
        from sglang_photon.upstream import transport_choice

        transport_choice.install()

    HookRegistry.register(RESOLVED, before_resolving, HookType.BEFORE)
    HookRegistry.register(RESOLVED, after_resolving, HookType.AFTER)
    os.environ.setdefault(APPLICATION, WORKER_APPLICATION)


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
