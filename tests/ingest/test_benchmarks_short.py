"""The benchmarks in short form, with margins that a busy machine keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_photon.bench import ingest, ipc, vlm


@pytest.mark.timeout(240)
def test_a_picture_stalls_the_device_for_less_than_half_of_sglang_s(tmp_path: Path) -> None:
    file = tmp_path / "ingest.json"
    arguments = ["--image", "1024", "--rate", "3", "--no-bursts", "--seconds", "2", "--reps", "1"]
    assert ingest.main([*arguments, "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    cells = {cell["loop"]: cell for cell in report["cells"]}
    assert set(cells) == {"sglang", "photon"}
    assert cells["photon"]["idle_ms_per_image"] < cells["sglang"]["idle_ms_per_image"] / 2
    assert report["ratios"][0]["idle_at_most"] == 0.1


@pytest.mark.timeout(240)
def test_image_chats_are_served_under_every_loop(tmp_path: Path) -> None:
    file, drawing = tmp_path / "vlm.json", tmp_path / "vlm.svg"
    arguments = ["--profile", "b200", "--chats", "8", "--requests", "32", "--reps", "1"]
    assert vlm.main([*arguments, "--json", str(file), "--plot", str(drawing)]) == 0
    loops = json.loads(file.read_text())["profiles"]["b200"]
    assert set(loops) == set(vlm.LOOPS)
    for figures in loops.values():
        assert figures["tok_s"] > 0
        assert 0 <= figures["idle_pct"] < 100
    assert loops["photon"]["tok_s"] > loops["blocking"]["tok_s"]
    assert drawing.read_text().startswith("<svg")


def test_pools_are_opened_once_by_both_caches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ipc.json"
    assert ipc.main(["--tensors", "40", "--pools", "2", "--reps", "1", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert "stand-in" in report["driver"]
    rows = {row["way"]: (row["opens"], row["hits"]) for row in report["rows"]}
    assert rows == {"off": (40, 0), "dict": (2, 38), "cache": (2, 38)}
    assert "us/tensor" in capsys.readouterr().out
