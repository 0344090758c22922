"""The bootstrap installs what it should, repairs what is broken, and leaves alone what is right."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import bootstrap

ROOT = Path(__file__).resolve().parents[2]


class FakeMachine:
    """Stands in for the commands that the bootstrap runs.

    Args:
        root: the checkout; environments are made in it as folders with a `bin/python`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[str] = []
        self.broken: set[str] = set()
        self.requires: list[str] = ["nvidia-cublas-cu13==13.0", "sympy"]
        self.interrupt_at = ""

    def run(self, command: list[str], *, lock: int) -> bool:
        line = " ".join(command)
        with bootstrap.LOG.open("a") as log:
            log.write(f"$ {line}\nERROR: the reason\n")
        if self.interrupt_at and self.interrupt_at in line:
            raise KeyboardInterrupt
        if "-m venv" in line:
            (self.root / ".venv/bin").mkdir()
            (self.root / ".venv/bin/python").symlink_to(sys.executable)
        if "--report" in line:
            found = {"install": [{"metadata": {"requires_dist": self.requires}}]}
            Path(command[command.index("--report") + 1]).write_text(json.dumps(found))
        self.commands.append(line.partition("--progress-bar off ")[2] or line)
        return not any(word in line for word in self.broken)

    def setup(self, *arguments: str) -> tuple[int, list[str]]:
        """Run the bootstrap; its exit code and the commands it ran."""
        self.commands.clear()
        return bootstrap.main(arguments), list(self.commands)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A checkout without `.venv` on a machine without a GPU."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "requirements", root / "requirements")
    shutil.copy(ROOT / "pyproject.toml", root)
    venv = root / ".venv"
    places = {"ROOT": root, "VENV": venv, "PYTHON": venv / "bin/python"}
    places |= {"STATE": venv / "photon-setup.json", "LOG": venv / "setup.log"}
    for name, path in (places | {"REQUIREMENTS": root / "requirements"}).items():
        monkeypatch.setattr(bootstrap, name, path)
    fake = FakeMachine(root)
    monkeypatch.setattr(bootstrap, "run", fake.run)
    monkeypatch.setattr(bootstrap, "gpu_present", lambda: False)
    return fake


def test_without_a_gpu_the_lock_is_installed(machine: FakeMachine) -> None:
    code, (venv, torch, lock, project) = machine.setup()
    assert code == 0
    assert "-m venv" in venv
    assert torch == "--no-deps torch==2.13.0+cpu"
    assert lock.startswith("--no-deps --requirement=")
    assert all(name in lock for name in ("cpu.txt", "demo.txt", "dev.txt"))
    assert project == f"--no-deps --no-build-isolation --editable={machine.root}"


def test_with_a_gpu_the_declared_dependencies_are(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "gpu_present", lambda: True)
    _, (_, tools, project) = machine.setup()
    assert "cpu.txt" not in tools
    assert project == f"--editable={machine.root}"


def test_a_ready_environment_is_left_alone(machine: FakeMachine) -> None:
    machine.setup()
    assert machine.setup() == (0, [])


def test_a_changed_requirement_updates_in_place(machine: FakeMachine) -> None:
    machine.setup()
    with (machine.root / "requirements/dev.txt").open("a") as file:
        file.write("another==1.0\n")
    _, commands = machine.setup()
    assert len(commands) == 3
    assert not any("venv" in command.split(" --")[0] for command in commands)
    assert machine.setup() == (0, [])


@pytest.mark.parametrize("step", ["-m venv", "torch==", "cpu.txt", "--editable"])
def test_an_interrupted_run_is_made_again(machine: FakeMachine, step: str) -> None:
    machine.interrupt_at = step
    code, _ = machine.setup()
    assert code == 130
    (machine.root / ".venv/half-written").touch()
    machine.interrupt_at = ""
    code, commands = machine.setup()
    assert code == 0
    assert "-m venv" in commands[0]
    assert not (machine.root / ".venv/half-written").exists()


def test_an_interrupted_update_is_made_again(machine: FakeMachine) -> None:
    machine.setup()
    (machine.root / "requirements/demo.txt").write_text("other==1.0\n")
    machine.interrupt_at = "cpu.txt"
    machine.setup()
    machine.interrupt_at = ""
    assert len(machine.setup()[1]) == 4


def test_a_failure_names_the_log_and_leaves_the_rest_to_the_next_run(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.broken = {"cpu.txt"}
    code, _ = machine.setup()
    captured = capsys.readouterr()
    assert code == 1
    assert "ERROR: the reason" in captured.out
    assert str(bootstrap.LOG) in captured.err
    assert len(captured.err.splitlines()) == 1
    machine.broken = set()
    assert machine.setup()[0] == 0


def test_a_removed_interpreter_or_a_moved_checkout_makes_it_anew(machine: FakeMachine) -> None:
    machine.setup()
    bootstrap.PYTHON.unlink()
    assert len(machine.setup()[1]) == 4
    state = json.loads(bootstrap.STATE.read_text())
    bootstrap.write_state(**{**state, "root": "elsewhere", "digest": "another"})
    assert len(machine.setup()[1]) == 4


def test_an_environment_made_by_hand_is_kept(machine: FakeMachine) -> None:
    (machine.root / ".venv/bin").mkdir(parents=True)
    bootstrap.PYTHON.symlink_to(sys.executable)
    code, commands = machine.setup()
    assert (code, len(commands)) == (0, 3)


def test_cuda_stays_when_it_was_asked_for(machine: FakeMachine) -> None:
    machine.setup()
    assert len(machine.setup("--cuda", "1")[1]) == 3
    assert machine.setup() == (0, [])
    assert len(machine.setup("--cuda", "0")[1]) == 4


def test_cpu_torch_comes_from_pytorch_when_pip_has_none(machine: FakeMachine) -> None:
    machine.broken = {"--no-deps torch==2.13.0+cpu"}
    code, commands = machine.setup()
    assert code == 0
    assert commands[2].endswith(
        f"--index-url {bootstrap.CPU_INDEX} torch==2.13.0+cpu torchvision==0.28.0+cpu"
    )


def test_cuda_torch_is_never_taken_unasked(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.broken = {"+cpu"}
    code, commands = machine.setup()
    (error,) = capsys.readouterr().err.splitlines()
    assert code == 1
    assert "--no-deps torch==2.13.0" not in commands
    assert "PIP_FIND_LINKS" in error
    assert "make setup CUDA=1" in error


def test_a_plain_torch_without_cuda_is_taken(machine: FakeMachine) -> None:
    machine.broken = {"+cpu"}
    machine.requires = ["sympy", 'nvidia-extras; extra == "all"']
    code, commands = machine.setup()
    assert code == 0
    assert "--no-deps torch==2.13.0" in commands


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 15)])
def test_an_unsupported_python_is_refused_in_one_line(
    machine: FakeMachine,
    version: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bootstrap, "probe", lambda executable: version)
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    code, commands = machine.setup()
    (error,) = capsys.readouterr().err.splitlines()
    assert (code, commands) == (1, [])
    assert f"Python {version[0]}.{version[1]}" in error
    assert "runs on Python 3.11 to 3.14" in error
    assert not bootstrap.VENV.exists()


def test_another_supported_python_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3.12"
    other.write_text("#!/bin/sh\necho 3 12\n")
    other.chmod(0o755)
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3 9\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(old))
    assert bootstrap.choose_python(False) == (str(other), (3, 12))
    with pytest.raises(bootstrap.SetupError):
        bootstrap.choose_python(True)


def test_an_old_python_can_read_the_bootstrap() -> None:
    ast.parse((ROOT / "tools/bootstrap.py").read_text(), feature_version=(3, 8))


def test_a_second_run_waits_for_the_first(tmp_path: Path) -> None:
    """Two commands started together must not install into one folder at once."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/bootstrap.py", tmp_path / "tools")
    script = tmp_path / "tools/bootstrap.py"
    with script.open("rb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PIP_NO_INDEX": "1"},
        )
        assert second.stdout is not None
        assert "waiting for it" in second.stdout.readline()
        second.kill()
        second.communicate()
    assert not (tmp_path / ".venv").exists()
