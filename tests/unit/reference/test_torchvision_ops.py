"""torchvision's operators: defined where its own library does not load, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from sglang_photon.reference import torchvision_ops
from sglang_photon.reference.finder import Decisions, ReferenceFinder

PROBE = """
from sglang_photon import reference

reference.install()
import torch
import torchvision
from torchvision.transforms.v2 import functional

picture = functional.resize(torch.zeros(3, 8, 8), [4, 4])
assert picture.shape == (3, 4, 4)
part = reference.status().torchvision
boxes, scores = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]]), torch.tensor([0.5, 0.9])
if part.choice == "real":
    assert torch.ops.torchvision.nms(boxes, scores, 0.5).tolist() == [1]
else:
    assert part.choice == "reference" and part.reason
    for op in (torch.ops.torchvision.nms, torch.ops.torchvision.qnms):
        try:
            op(boxes, scores, 0.5)
        except reference.ReferenceOpMissing as error:
            assert error.operation.startswith("torchvision.ops.")
        else:
            raise SystemExit("the operator answered")
print(part.choice)
"""


def library(folder: Path) -> Path:
    return folder / f"_C{EXTENSION_SUFFIXES[-1]}"


def test_torchvision_imports_either_way() -> None:
    environ = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() in ("real", "reference")


def test_no_library(tmp_path: Path) -> None:
    assert torchvision_ops.own_ops_load([str(tmp_path)]) == "there is no compiled library"


def test_unloadable_library(tmp_path: Path) -> None:
    library(tmp_path).write_bytes(b"not a library")
    trouble = torchvision_ops.own_ops_load([str(tmp_path)])
    assert trouble is not None
    assert str(tmp_path) in trouble


def test_loadable_library_means_hands_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import _ctypes

    library(tmp_path).symlink_to(str(_ctypes.__file__))
    assert torchvision_ops.own_ops_load([str(tmp_path)]) is None

    monkeypatch.setattr(torchvision_ops, "define_ops", lambda: pytest.fail("ops were defined"))
    decisions = Decisions()
    ReferenceFinder(decisions=decisions).before_torchvision([str(tmp_path)])
    assert decisions.choices["torchvision"][0] == "real"
