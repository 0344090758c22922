"""Plugins of SGLang that tests put beside ours, installed into a folder of their own."""

from __future__ import annotations

from pathlib import Path

PROBE = """\
import json, os, signal, sys
from pathlib import Path

def load():
    # SGLang loads plugins in the main thread, which is the only one that may set a handler.
    signal.signal(signal.SIGUSR1, report)

def report(signum, frame):
    scheduler = sys.modules.get("sglang.srt.managers.scheduler")
    facts = {
        "modules": sorted(name for name in sys.modules if name.startswith("sglang_photon")),
        "scheduler": scheduler and scheduler.Scheduler.__module__,
    }
    target = Path(os.environ["PHOTON_TEST_PROBE"]) / f"{os.getpid()}.json"
    unfinished = target.with_suffix(".part")
    unfinished.write_text(json.dumps(facts))
    unfinished.rename(target)
"""

USURPER = """\
import sys

def load():
    name = "sglang.srt.managers.scheduler"
    if name not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    class OtherScheduler(sys.modules[name].Scheduler):
        pass

    HookRegistry.register(f"{name}.Scheduler", OtherScheduler, HookType.REPLACE)
"""


def install_plugin(folder: Path, *, name: str, source: str) -> str:
    """Make a plugin that SGLang finds once `folder` is on PYTHONPATH; returns that folder."""
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:load\n")
    return str(folder)
