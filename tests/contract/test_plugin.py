"""The plugin in SGLang's own framework: in place, or the process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sglang_photon import plugin, reference
from sglang_photon.config import PhotonConfig

pytestmark = pytest.mark.timeout(180)
REPORT = """
import json, sys
import sglang.srt.managers.scheduler as scheduler
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
{before}
load_plugins()
reached = []
try:
    # Past the check, upstream's function fails on these arguments.
    scheduler.configure_scheduler_process(None, 0)
except SystemExit as end:
    reached.append(end.code)
except Exception as error:
    reached.append(type(error).__name__)
print(json.dumps([scheduler.Scheduler.__name__, scheduler.Scheduler.__module__, reached[0]]))
"""
LATER_PLUGIN = """
class Other(scheduler.Scheduler):
    pass
from sglang.srt.plugins import hook_registry
apply = HookRegistry.apply_hooks
def apply_after_another_plugin():
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler", Other, HookType.REPLACE)
    apply()
HookRegistry.apply_hooks = apply_after_another_plugin
"""


def run(before: str, **environ: str) -> tuple[list[object], str]:
    variables = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", **environ}
    ended = subprocess.run(
        [sys.executable, "-c", REPORT.format(before=before)],
        env={**variables, **reference.child_environment(variables)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer: list[object] = json.loads(ended.stdout.splitlines()[-1])
    return answer, ended.stderr


def test_switched_on_the_scheduler_is_ours_and_the_check_lets_it_pass() -> None:
    (name, module, end), _ = run("", SGLANG_PHOTON="1")
    assert (name, module) == ("PhotonScheduler", "sglang_photon.upstream.scheduler")
    assert isinstance(end, str)


def test_installed_but_not_switched_on_it_changes_nothing() -> None:
    (name, module, _), _ = run("")
    assert (name, module) == ("Scheduler", "sglang.srt.managers.scheduler")


def test_another_plugin_that_wins_the_scheduler_ends_the_process() -> None:
    (name, _, end), stderr = run(LATER_PLUGIN, SGLANG_PHOTON="1")
    assert (name, end) == ("Other", 1)
    assert "Photon's scheduler is not in place" in stderr


def test_a_process_without_a_scheduler_does_not_import_one() -> None:
    code = (
        "import sys; from sglang.srt.plugins import load_plugins; load_plugins();"
        "print([name for name in sys.modules if name.endswith('managers.scheduler')])"
    )
    variables = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PHOTON": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**variables, **reference.child_environment(variables)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert printed.splitlines()[-1] == "[]"


@pytest.mark.parametrize("loop", ["sglang", "blocking"])
def test_photon_and_a_stock_loop_at_once_is_refused(
    loop: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in PhotonConfig(loop=loop).to_environment().items():
        monkeypatch.setenv(name, value)
    plugin.load()
    monkeypatch.setenv("SGLANG_PHOTON", "1")
    with pytest.raises(SystemExit):
        plugin.load()
    assert f"SGLANG_PHOTON_LOOP={loop}" in capsys.readouterr().err


def test_an_install_that_fails_in_any_way_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(config: PhotonConfig) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setenv("SGLANG_PHOTON", "1")
    monkeypatch.setenv("SGLANG_PHOTON_LOOP", "auto")
    monkeypatch.setattr("sglang_photon.upstream.install.install", fail)
    with pytest.raises(SystemExit) as end:
        plugin.load()
    assert end.value.code == 1
    assert "RuntimeError: unforeseen" in capsys.readouterr().err
