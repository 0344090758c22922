"""What Photon overrides or calls in SGLang, and the parameters it expects to find there.

A subclass that overrides a method whose parameters have changed fails late and oddly. This table
is compared with the running SGLang before a scheduler starts, and by the contract tests.
"""

from __future__ import annotations

import inspect
import pkgutil

from sglang_photon.errors import PhotonError

SCHEDULER_PROCESS = {
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
