"""Plugins of SGLang that tests put beside ours, installed into a folder of their own."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.server.servers import wait_until

PROBE_FOLDER = "PHOTON_TEST_PROBE"
PROBE = f"""\
import json, os, signal, sys
from pathlib import Path

def load():
    # SGLang loads plugins in the main thread, which is the only one that may set a handler.
    signal.signal(signal.SIGUSR1, report)

def report(signum, frame):
    scheduler = sys.modules.get("sglang.srt.managers.scheduler")
    facts = {{
        "modules": sorted(name for name in sys.modules if name.startswith("sglang_photon")),
        "scheduler": scheduler and scheduler.Scheduler.__module__,
    }}
    target = Path(os.environ["{PROBE_FOLDER}"]) / f"{{os.getpid()}}.json"
    unfinished = target.with_suffix(".part")
    unfinished.write_text(json.dumps(facts))
    unfinished.rename(target)
"""
SLOW_PICTURE_S = 1.0
SLOW_PICTURES = f"""\
import asyncio

PROCESSOR = "sglang.srt.multimodal.processors.qwen_vl.QwenVLImageProcessor.process_mm_data_async"

async def slowly(process, *args, **kwargs):
    if "slowly" in str(kwargs.get("input_text", args[2:])):
        await asyncio.sleep({SLOW_PICTURE_S})
    return await process(*args, **kwargs)

def load():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def after_parsing(*args, **kwargs):
        HookRegistry.register(PROCESSOR, slowly, HookType.AROUND)
        HookRegistry.apply_hooks()

    # The module reads variables that are set while arguments are parsed.
    HookRegistry.register(
        "sglang.srt.server_args.prepare_server_args", after_parsing, HookType.AFTER
    )
"""
"""Preparing a picture takes a second if the question says "slowly"."""
USURPER = """\
import sys

def load():
    name = "sglang.srt.managers.scheduler"
    if name not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    class OtherScheduler(sys.modules[name].Scheduler):
        pass

    # Whichever plugin comes last wins: this one, wherever it stands in the list.
    apply = HookRegistry.apply_hooks

    def last():
        HookRegistry.register(f"{name}.Scheduler", OtherScheduler, HookType.REPLACE)
        apply()

    HookRegistry.apply_hooks = last
"""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What one process of a server has loaded.

    Attributes:
        modules: its modules of this package.
        scheduler: module of the class it would construct as the scheduler; None where it has none.
    """

    modules: frozenset[str]
    scheduler: str | None


def install_plugin(folder: Path, *, name: str, source: str) -> dict[str, str]:
    """Make a plugin that SGLang finds; returns the environment in which it does."""
    folder.mkdir()
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:load\n")
    rest = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([rest] if rest else [])])}


def install_slow_pictures(folder: Path) -> dict[str, str]:
    """Make the plugin that takes its time over some pictures."""
    return install_plugin(folder, name="photon_slow_pictures", source=SLOW_PICTURES)


def install_probe(folder: Path) -> dict[str, str]:
    """Make the plugin that `probe` asks; returns the environment for the server."""
    return {**install_plugin(folder, name="photon_probe", source=PROBE), PROBE_FOLDER: str(folder)}


def probe(folder: Path, process_id: int) -> Probed:
    """Ask a running process what it has loaded."""
    answer = folder / f"{process_id}.json"
    os.kill(process_id, signal.SIGUSR1)
    wait_until(answer.exists, limit_s=20)
    facts = json.loads(answer.read_text())
    return Probed(modules=frozenset(facts["modules"]), scheduler=facts["scheduler"])
