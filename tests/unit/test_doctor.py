from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_photon import doctor
from sglang_photon.doctor import Finding

GOOD = Finding(name="good", ok=True, detail="all well")
HARMLESS = Finding(name="harmless", ok=False, detail="no ptrace", remedy="be root")
FATAL = Finding(name="fatal", ok=False, detail="no torch", remedy="get it", stops_serving=True)


def run(findings: list[Finding], monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    checks: list[Callable[[], Finding]] = [lambda found=found: found for found in findings]  # type: ignore[misc]
    monkeypatch.setattr(doctor, "CHECKS", tuple(checks))
    return doctor.main(argv)


def test_one_line_each_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([GOOD, HARMLESS], monkeypatch) == 0
    good, harmless = capsys.readouterr().out.splitlines()
    assert good.split() == ["ok", "good", "all", "well"]
    assert harmless.startswith("PROBLEM")
    assert harmless.endswith("no ptrace -> be root")


def test_only_what_stops_serving_makes_the_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([GOOD, FATAL], monkeypatch, "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["serves"] is False
    assert [check["name"] for check in answer["checks"]] == ["good", "fatal"]
    assert answer["checks"][1]["remedy"] == "get it"


@pytest.mark.parametrize(
    ("scope", "capable", "ok"), [("1", False, False), ("1", True, True), ("0", False, True)]
)
def test_ptrace_needs_the_capability_or_an_open_yama(
    scope: str, capable: bool, ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yama = tmp_path / "ptrace_scope"
    yama.write_text(f"{scope}\n")
    monkeypatch.setattr(doctor, "YAMA", yama)
    monkeypatch.setattr(doctor, "_may_ptrace", lambda: capable)
    found = doctor.check_ptrace()
    assert found.ok is ok
    assert ("SYS_PTRACE" in found.remedy) is not ok


def test_a_gpu_that_torch_cannot_use_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda: "NVIDIA H200, 580.1")
    monkeypatch.setattr(doctor, "_accelerator", lambda: False)
    found = doctor.check_gpu()
    assert not found.ok
    assert "NVIDIA H200" in found.detail


def test_little_shared_memory_names_the_docker_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_SHM_BYTES", 1 << 60)
    found = doctor.check_shared_memory()
    assert not found.ok
    assert "--shm-size" in found.remedy
    assert not found.stops_serving


def test_the_plugin_is_found_in_this_installation() -> None:
    assert doctor.check_plugin().ok


def test_a_check_that_breaks_is_a_finding_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_unlucky() -> Finding:
        raise RuntimeError("the driver hangs")

    monkeypatch.setattr(doctor, "CHECKS", (check_unlucky,))
    assert doctor.main([]) == 1
    line = capsys.readouterr().out
    assert line.split()[:2] == ["PROBLEM", "unlucky"]
    assert "the driver hangs" in line


def test_a_plugin_that_is_left_out_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    found = doctor.check_plugin()
    assert found.stops_serving
    assert "SGLANG_PLUGINS" in found.detail


@pytest.mark.parametrize(("accelerator", "transport"), [(True, "cuda_ipc, 512"), (False, "cpu")])
def test_it_says_which_way_pictures_go(
    monkeypatch: pytest.MonkeyPatch, accelerator: bool, transport: str
) -> None:
    monkeypatch.setattr(doctor, "_accelerator", lambda: accelerator)
    monkeypatch.setattr("torch.version.cuda", "12.9")
    monkeypatch.setenv("SGLANG_MM_FEATURE_CACHE_MB", "512")
    assert transport in doctor.check_images().detail
