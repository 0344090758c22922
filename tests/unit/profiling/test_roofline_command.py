"""The command line of `photon roofline`: what it prints, and how it says no."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from sglang_photon.cli import main

CONFIGS = Path(__file__).resolve().parents[3] / "tests/fixtures/configs"
LLAMA = str(CONFIGS / "llama-3.1-8b.json")


def numbers(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["roofline", *words, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["roofline", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_json_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    found = numbers(capsys, "--config", LLAMA, "--gpu", "H100", "--batch", "1", "--context", "1",
                    "--prompt", "2000")  # fmt: skip
    assert found["ridge_flop_per_byte"] == pytest.approx(295.2, abs=0.1)
    assert found["decode_floor_ms"] == pytest.approx(4.79, abs=0.01)
    assert found["prefill_floor_ms"] == pytest.approx(32.5, abs=0.1)
    assert found["decode_ceiling_tok_s"] == pytest.approx(208.6, abs=0.1)
    assert found["compute_bound_batch"] == 296
    assert found["measured"] is None
    assert "data sheet" in found["gpu_source"]


def test_tokens_per_second_are_those_of_the_whole_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--config", LLAMA, "--gpu", "H100", "--batch", "8")
    by_rate = numbers(capsys, *words, "--tok-s", "800")["measured"]
    by_time = numbers(capsys, *words, "--step-ms", "10")["measured"]
    assert by_rate == pytest.approx(by_time)
    assert 0 < by_time["mfu"] < by_time["mbu"] < 1


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
@pytest.mark.parametrize("gpu", ["H100", "B200", "RTX 3090"])
def test_every_model_on_every_kind_of_gpu(
    config: Path, gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = numbers(capsys, "--config", str(config), "--gpu", gpu, "--batch", "16")
    assert found["decode_floor_ms"] > 0
    assert found["prefill_floor_ms"] > 0


def test_the_table_names_source_bound_and_gain(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "answer.json"
    words = ["--config", LLAMA, "--gpu", "H100", "--step-ms", "8", "--json", str(written)]
    assert main(["roofline", *words]) == 0
    table = capsys.readouterr().out
    for part in ("data sheet", "bound by memory", "MBU", "of the floor", "weights in fp8"):
        assert part in table
    assert json.loads(written.read_text())["measured"]["step_ms"] == 8


def test_an_unknown_gpu_with_a_measured_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", "--config", LLAMA, "--gpu", "TPU v9", "--step-ms", "8"]) == 0
    table = capsys.readouterr().out
    assert "not in the table" in table
    assert "unknown (" in table
    found = numbers(capsys, "--config", LLAMA, "--gpu", "TPU v9", "--step-ms", "8")
    assert found["measured"]["mfu"] is None
    assert found["decode_floor_ms"] is None


def test_an_unknown_gpu_without_a_measured_step(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--config", LLAMA, "--gpu", "H10")
    assert "H100-SXM" in said
    assert "--bandwidth-gbs" in said


def test_no_gpu_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--gpu" in refusal(capsys, "--config", LLAMA)


def test_measured_values_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    found = numbers(capsys, "--config", LLAMA, "--bandwidth-gbs", "2000", "--peak-tflops", "200")
    assert found["ridge_flop_per_byte"] == 100


def test_more_than_everything(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--config", LLAMA, "--gpu", "H100", "--step-ms", "1")
    assert "which cannot be" in said


def test_files_that_are_no_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken, listed, bare = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    broken.write_text("{")
    listed.write_text("[]")
    bare.write_text("{}")
    gpu = ("--gpu", "H100")
    assert "cannot be read" in refusal(capsys, "--config", str(tmp_path / "none.json"), *gpu)
    assert "not JSON" in refusal(capsys, "--config", str(broken), *gpu)
    assert "no JSON object" in refusal(capsys, "--config", str(listed), *gpu)
    said = refusal(capsys, "--config", str(bare), *gpu)
    assert "hidden_size, num_hidden_layers, vocab_size, num_attention_heads" in said


def test_more_image_tokens_than_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--config", LLAMA, "--gpu", "H100", "--prompt", "10", "--image-tokens", "11")
    assert "--prompt" in refusal(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["--batch", "0"],
        ["--context", "-1"],
        ["--step-ms", "nan"],
        ["--step-ms", "3", "--tok-s", "4"],
        ["--kv-dtype", "fp7"],
    ],
)
def test_flags_that_cannot_be(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["roofline", "--config", LLAMA, "--gpu", "H100", *words])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_the_drawing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawing = tmp_path / "roofline.svg"
    words = ["--config", LLAMA, "--gpu", "H100", "--step-ms", "8", "--plot", str(drawing)]
    assert main(["roofline", *words]) == 0
    root = ET.parse(drawing).getroot()
    space = "{http://www.w3.org/2000/svg}"
    kinds = [circle.get("class") for circle in root.iter(f"{space}circle")]
    assert kinds.count("measured") == 1
    assert kinds.count("prefill") == 1
    points = {
        circle.get("class"): (float(circle.get("cx", "")), float(circle.get("cy", "")))
        for circle in root.iter(f"{space}circle")
    }
    for x, y in points.values():
        assert 0 < x < 720
        assert 0 < y < 440
    roof = root.find(f"{space}polyline")
    assert roof is not None
    assert len(roof.get("points", "").split()) == 3


def test_a_drawing_is_an_svg(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--config", LLAMA, "--gpu", "H100", "--plot", str(tmp_path / "roofline.png"))
    assert ".svg" in refusal(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--config", LLAMA, "--gpu", "H100", "--plot", str(tmp_path / "none" / "a.svg"))
    assert "cannot be written" in refusal(capsys, *words)
