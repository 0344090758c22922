"""A start that cannot work ends at once, in one line that says what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_photon.server_process import free_port

LIMIT_S = 100
DEMO = ("--model-path", "demo:random:qwen2")


class Place:
    """An empty folder to start from, with nothing of the user's in the environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.work = folder / "work"
        self.work.mkdir()
        self.environ = {
            **os.environ,
            "HOME": str(folder),
            "SGLANG_PHOTON_CACHE": str(self.cache),
            "HF_HOME": str(folder / "hub"),
            # Nobody listens there: the same as no network, without waiting for one.
            "HF_ENDPOINT": "http://127.0.0.1:9",
        }

    def start(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the launcher to its end."""
        port = ("--port", str(free_port()))  # A server of somebody else may have the default one.
        return subprocess.run(
            [sys.executable, "-m", "sglang_photon.launch_server", *port, *arguments],
            cwd=self.work,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )

    def refusal(self, *arguments: str, **environ: str) -> str:
        """The one line of a start that is refused, which left nothing half-written."""
        ended = self.start(*arguments, **environ)
        assert ended.returncode not in (0, None), ended.stdout
        assert ended.stdout == ""
        lines = [line for line in ended.stderr.splitlines() if "chosen for the CPU" not in line]
        assert len(lines) == 1, ended.stderr
        assert lines[0].startswith("sglang-photon: error: ")
        assert not list(self.work.iterdir())
        assert not self.cache.exists() or not list(self.cache.glob("*"))
        return lines[0]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        ((), "no model", "--model-path demo"),
        (("--model-path",), "--model-path", ""),
        (("--model-path", "/no/such/model"), "/no/such/model", "Check the path"),
        (("--model-path", "./nothing"), "./nothing", "Check the path"),
        (("--model-path", "demo:nothing"), "demo:nothing", "demo:vlm"),
        (("--model-path", "demo:random:nothing"), "nothing", "qwen2"),
        (("--model-path", "nobody/no-such-model"), "nobody/no-such-model", "--model-path demo"),
        ((*DEMO, "--photon-lop", "auto"), "--photon-lop", "--photon-loop"),
        ((*DEMO, "--photon-loop", "fast"), "fast", "blocking"),
        ((*DEMO, "--photon-loop"), "--photon-loop", "--help"),
        ((*DEMO, "--port", "eighty"), "eighty", ""),
        ((*DEMO, "--port", "70000"), "70000", "--port"),
        ((*DEMO, "--host", "192.0.2.1"), "192.0.2.1", "--port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_arguments(
    place: Place, arguments: tuple[str, ...], problem: str, remedy: str
) -> None:
    line = place.refusal(*arguments)
    assert problem.lower() in line.lower()
    assert remedy in line


def test_a_folder_without_a_model(place: Place) -> None:
    empty = place.folder / "empty"
    empty.mkdir()
    line = place.refusal("--model-path", str(empty))
    assert str(empty) in line
    assert "config.json" in line
    assert not list(empty.iterdir())


def test_a_busy_port(place: Place, busy_port: int) -> None:
    line = place.refusal(*DEMO, "--port", str(busy_port))
    assert f":{busy_port}" in line
    assert "Choose another port with --port" in line


def test_a_cache_that_cannot_be_written(place: Place) -> None:
    file = place.folder / "file"
    file.touch()
    line = place.refusal(*DEMO, SGLANG_PHOTON_CACHE=str(file / "cache"))
    assert str(file) in line
    assert "Set SGLANG_PHOTON_CACHE" in line
    assert file.stat().st_size == 0


def test_a_plugin_list_that_leaves_ours_out(place: Place) -> None:
    line = place.refusal("--model-path", str(model_folder(place)), SGLANG_PLUGINS="other")
    assert "SGLANG_PLUGINS=other" in line
    assert "photon" in line


def model_folder(place: Place) -> Path:
    """A folder that looks like a model to the launcher; refused before anything is read."""
    folder = place.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder
