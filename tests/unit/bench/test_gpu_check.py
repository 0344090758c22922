"""The GPU check without a GPU: its rehearsal, its file, its limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_photon.bench import gpu_check
from sglang_photon.bench.gpu.journal import NO_CUDA, Journal, markdown
from sglang_photon.bench.gpu.parts import PARTS, Part
from sglang_photon.bench.gpu.settings import Settings, settings_from

SCRIPT = Path(gpu_check.__file__).resolve()


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """Parts a to c, as a person would rehearse them."""
    out = tmp_path_factory.mktemp("gpu") / "figures.jsonl"
    command = [sys.executable, str(SCRIPT), "--rehearse", "--parts", "abc", "--out", str(out)]
    few = ["--batch", "3", "--host-us", "0", "300", "--steps", "12"]
    done = subprocess.run([*command, *few], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Journal(out)


def test_every_part_of_the_rehearsal_is_done(rehearsed: Journal) -> None:
    assert [(end.part, end.outcome) for end in rehearsed.ends().values()] == [
        ("a", "done"),
        ("b", "done"),
        ("c", "done"),
    ]


def test_what_only_cuda_can_answer_says_so(rehearsed: Journal) -> None:
    without = {figure.name for figure in rehearsed.figures() if figure.note == NO_CUDA}
    assert "GPU" in without
    assert "P6: allocator counters that moved" in without
    idle = [f for f in rehearsed.figures() if f.column == "idle per step, two slots"]
    assert [figure.note for figure in idle] == [NO_CUDA, NO_CUDA]
    assert "memory that comes back with it" in without


def test_both_loops_read_the_same_tokens(rehearsed: Journal) -> None:
    same = [f.value for f in rehearsed.figures() if f.column == "same tokens"]
    assert same == [True, True]


def test_a_dead_producers_handle_is_refused(rehearsed: Journal) -> None:
    answers = {f.name: f.value for f in rehearsed.figures() if f.part == "c"}
    assert answers["its mapping is closed at the last release"] is True
    assert answers["its handle is refused from then on"] is True
    assert answers["the next generation is served"] is True


@pytest.mark.timeout(300)
def test_sglang_itself_is_rehearsed(tmp_path: Path) -> None:
    """Parts d to f: every loop on every load, with the blocking loop's tokens; a recording."""
    out = tmp_path / "figures.jsonl"
    few = ["--batch", "2", "--steps", "8", "--parts", "def"]
    command = [sys.executable, str(SCRIPT), "--rehearse", "--out", str(out), *few]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    journal = Journal(out)
    assert journal.ends()["d"].done
    assert journal.ends()["e"].outcome == "cannot run here"
    rows = {f.name: f for f in journal.figures() if f.column == "rows with blocking's tokens"}
    assert len(rows) == 2 * 2 * 3
    assert {figure.value for figure in rows.values()} == {"2 of 2"}
    if journal.ends()["f"].done:  # Where py-spy may attach.
        assert (tmp_path / "figures-photon.folded").exists()
    else:
        assert journal.ends()["f"].outcome == "cannot run here"


def test_a_part_that_is_done_is_not_run_again(
    rehearsed: Journal, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["--rehearse", "--parts", "a", "--out", str(rehearsed.path)]
    assert gpu_check.main(asked) == 0
    assert "done before" in capfd.readouterr().out


def test_the_report_is_markdown(rehearsed: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--report", "--out", str(rehearsed.path)]) == 0
    report = capsys.readouterr().out
    assert "**a. The machine**" in report
    assert f"| GPU | {NO_CUDA} |  |" in report
    assert "| | T_block | T_pipe | T_block / T_pipe | predicted |" in report
    assert "\n| 3 rows, host 300 µs | " in report


def test_a_part_over_its_limit_is_ended_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Part(letter="a", title="too short", module="facts", limit_s=0.05)
    monkeypatch.setitem(PARTS, "a", short)
    out = tmp_path / "figures.jsonl"
    small = ["--batch", "1", "--host-us", "0", "--steps", "8"]
    assert gpu_check.main(["--rehearse", "--parts", "ab", "--out", str(out), *small]) == 1
    ends = Journal(out).ends()
    assert ends["a"].outcome == "ended at its limit of 0 s"
    assert ends["b"].done


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")
    journal.figure("a", "name", 1.5, "ms")
    with journal.path.open("a") as file:
        file.write('{"figure": {"part": "a", "na')
    assert [figure.text() for figure in journal.figures()] == ["1.5 ms"]


def test_a_part_that_failed_says_so_in_the_report(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")
    journal.end("b", "failed, exit code 1", 2.0)
    report = markdown(journal.figures(), journal.ends(), {"a": "A", "b": "B"})
    assert report == "**b. B**\n\nfailed, exit code 1"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--parts", "abz", "--rehearse"], "There is no part 'z'"),
        (["--batch", "0", "--rehearse"], "A batch below 1"),
        (["--steps", "3", "--rehearse"], "less than 8 steps"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_check.main(arguments) == 2
    assert problem in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_told_of_the_rehearsal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path / "none.jsonl")]) == 2
    assert "add --rehearse" in capsys.readouterr().err


def test_settings_reach_the_part_unchanged(tmp_path: Path) -> None:
    settings = Settings(
        rehearse=True, batches=(1, 2), host_us=(0.0, 12.5), steps=9, out=tmp_path / "x"
    )
    options = gpu_check._options(["--run-part", "b", *settings.arguments()])
    assert settings_from(options) == settings
    assert list(PARTS)[:3] == ["a", "b", "c"]
