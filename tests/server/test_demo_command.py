"""`make demo`: what a newcomer sees first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_photon import demo
from sglang_photon.reference.models import pictures

LIMIT_S = 200


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("demo")
    return subprocess.run(
        [sys.executable, "-m", "sglang_photon.demo"],
        cwd=folder,
        # It keeps its pictures and its log for the reader.
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def values(ended: subprocess.CompletedProcess[str], name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", ended.stdout, re.MULTILINE)


def test_it_succeeds_and_shows_everything(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stderr
    for name in ("picture", "question", "answer", "time"):
        assert len(values(ended, name)) == 2, ended.stdout
    assert all(Path(path).is_file() for path in values(ended, "picture"))
    assert all(re.search("[0-9]+ ms until the first text", text) for text in values(ended, "time"))


def test_its_answers_are_right(ended: subprocess.CompletedProcess[str]) -> None:
    described, box = values(ended, "answer")
    assert described.rstrip(".") == pictures.describe(demo.SCENE)
    circle = demo.SCENE[0]
    assert json.loads(box) == json.loads(pictures.box_answer(circle))
