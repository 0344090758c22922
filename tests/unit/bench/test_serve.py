"""The arithmetic and the flags of `photon bench serve`; real servers are in tests/server."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_photon.arguments import ArgumentList
from sglang_photon.bench import serve
from sglang_photon.bench.serving import FIGURES, Load, Measured, equal_answers, read_report
from sglang_photon.errors import UsageError
from sglang_photon.upstream import bench_client

LOAD = Load(
    data="text",
    rate=None,
    concurrency=4,
    prompts=8,
    input_tokens=16,
    output_tokens=8,
    resolution="64x64",
)


def measured(value: float, *, idle: float | None = None, last: str = "b") -> Measured:
    return Measured(
        figures=dict.fromkeys(FIGURES, value), completed=2, idle_pct=idle, answers=("a", last)
    )


def test_rounds_become_medians() -> None:
    runs = {("text", "sglang"): [measured(v, idle=10 * v) for v in (3.0, 1.0, 2.0)]}
    (cell,) = serve.summarise(runs, model="demo", flags=()).cells
    assert cell.figures["request_throughput"] == 2.0
    assert cell.idle_pct == 20.0
    assert cell.rounds == 3


def test_photon_is_compared_with_stock_whatever_came_first() -> None:
    runs = {
        ("text", "photon"): [measured(3.0, last="c")],
        ("text", "sglang"): [measured(2.0)],
    }
    report = serve.summarise(runs, model="demo", flags=("--x",))
    assert [cell.loop for cell in report.cells] == ["sglang", "photon"]
    assert report.equal == {"text": (1, 2)}
    text = serve.markdown(report)
    assert "| text | SGLang | 2.00 |" in text
    assert "| text | Photon | 3.00 (+50.0 %) |" in text
    assert "not here: no GPU" in text
    assert "equal in every run, text: 1 of 2" in text


def test_answers_of_all_runs_must_agree() -> None:
    assert equal_answers([("a", "b", "c"), ("a", "b", "d"), ("a", "x", "c")]) == (1, 3)


def test_the_clients_report_is_read() -> None:
    report = dict.fromkeys(FIGURES, 1.5) | {"completed": 2, "generated_texts": ["a", "b"]}
    found = read_report(report, idle=12.0)
    assert (found.completed, found.answers, found.idle_pct) == (2, ("a", "b"), 12.0)
    assert found.figures["median_ttft_ms"] == 1.5


def test_a_load_becomes_the_clients_arguments() -> None:
    words = " ".join(LOAD.arguments())
    assert "--dataset-name random-ids" in words
    assert "--max-concurrency 4" in words
    assert "--request-rate inf" in words
    assert LOAD.name == "text, 4 at a time"


def test_flags_are_ours_or_the_servers() -> None:
    options, flags = serve._options(
        ["--model-path", "demo", "--bench-rate", "2", "--tp-size", "2", "--bench-data", "image"]
    )
    assert flags == ["--model-path", "demo", "--tp-size", "2"]
    assert [load.name for load in serve._loads(options)] == ["image, 2 req/s"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "No model is given"),
        (["--model-path", "demo", "--photon-loop", "photon"], "--photon-loop is not a flag"),
        (["--model-path", "demo", "--bench-speed", "9"], "--bench-speed is not a flag"),
        (["--model-path", "demo", "--bench-rounds", "0"], "is not positive"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: list[str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=problem):
        serve.main([*arguments, "--bench-out", str(tmp_path / "out")])


def test_the_client_runs_without_kernels_where_the_server_does() -> None:
    given = serve.client_environment(ArgumentList(["--device", "cpu"]), {"PATH": "/bin"})
    assert given["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "site" in given["PYTHONPATH"]
    there = serve.client_environment(ArgumentList(["--device", "cuda"]), {"PATH": "/bin"})
    assert there == {"PATH": "/bin"}


def test_a_missing_package_of_the_client_is_named_when_it_is_needed() -> None:
    with pytest.raises(UsageError, match="needs the package datasets"):
        bench_client.stand_in().load_dataset("mmmu")
