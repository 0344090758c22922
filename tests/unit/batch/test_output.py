"""What a job writes: order, tables, structured results, usage, progress."""

from __future__ import annotations

import asyncio
import csv
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from sglang_photon.batch import command
from sglang_photon.batch.idle import IdleMeter
from sglang_photon.batch.priority import below_others
from sglang_photon.batch.progress import Bar, Tally
from tests.unit.batch.jobs import line, read, run, write
from tests.unit.batch.stub import Stub, asked, completion, echo

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "share": {"type": "number"},
        "text": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["n"],
}


async def shuffled(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(random.Random(asked(body)).uniform(0, 0.02))
    if asked(body) == "row-5":
        return web.json_response({"error": {"message": "no"}}, status=400)
    return await echo(stub, body)


async def structured(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
    number = int(asked(body).removeprefix("row-"))
    answer: Any = {"n": number, "share": number, "text": "é,\n", "tags": ["a", "b"]}
    if number == 3:
        answer = {"n": "three"}
    text = "no JSON" if number == 4 else json.dumps(answer)
    return web.json_response(completion(text))


def test_keep_order(tmp_path: Path) -> None:
    names = [f"row-{n}" for n in range(100)]
    source = write(tmp_path / "in.jsonl", (line(name) for name in names[:60]))
    output = tmp_path / "out.jsonl"
    with Stub(shuffled) as stub:
        first = run(source, output, stub.url, "--keep-order")
        assert first.code == 3
        assert first.ids == [name for name in names[:60] if name != "row-5"]
        # Rows are added, one is dropped, and the one that failed is mended.
        write(source, (line(name) for name in [*names[:7], *names[8:]]))
    with Stub() as stub:
        again = run(source, output, stub.url, "--keep-order", "--retry-failed")
        assert len(stub.bodies) == 41
    assert again.code == 0
    assert again.ids == [*names[:7], *names[8:], "row-7"]


def test_results_in_order_are_there_while_the_job_runs(tmp_path: Path) -> None:
    names = [f"row-{n:03}" for n in range(200)]
    output = tmp_path / "out.jsonl"
    seen: list[list[str]] = []

    async def look(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(random.Random(asked(body)).uniform(0, 0.02))
        whole = output.read_text().rpartition("\n")[0]
        seen.append([json.loads(one)["custom_id"] for one in whole.splitlines()])
        return await echo(stub, body)

    with Stub(look) as stub:
        source = write(tmp_path / "in.jsonl", (line(name) for name in names))
        ended = run(source, output, stub.url, "--keep-order", "--in-flight", "8")
    assert ended.ids == names
    assert all(part == names[: len(part)] for part in seen)
    assert len(seen[-1]) > 100


def test_another_form_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [line("a")])
    output = tmp_path / "out.jsonl"
    with Stub() as stub:
        assert run(source, output, stub.url).code == 0
        assert run(source, output, stub.url, "--keep-order").code == 2
        assert "begun for JSON Lines as results come" in capsys.readouterr().err
        assert run(source, output, stub.url, "--keep-order", "--overwrite").code == 0
        assert len(stub.bodies) == 2


@pytest.mark.parametrize("to", ["parquet", "csv"])
def test_structured_results_as_a_table(tmp_path: Path, to: str) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(6)))
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    output = tmp_path / f"out.{to}"
    flags = ("--schema", str(tmp_path / "schema.json"), "--validate", "--keep-order")
    with Stub(structured) as stub:
        assert run(source, output, stub.url, *flags).code == 3
        for body in stub.bodies:
            assert body["response_format"]["json_schema"]["schema"] == SCHEMA
        assert run(source, output, stub.url, *flags).code == 3
        assert len(stub.bodies) == 6
    if to == "parquet":
        rows = pq.read_table(output).to_pylist()
    else:
        rows = list(csv.DictReader(output.open(newline="", encoding="utf-8")))
    assert list(rows[0]) == [
        *("custom_id", "text", "finish_reason", "prompt_tokens", "completion_tokens"),
        *("valid", "problem", "n", "share", "answer_text", "tags"),
    ]
    assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(6)]
    fine, wrong, none = rows[2], rows[3], rows[4]
    if to == "parquet":
        assert (fine["n"], fine["share"], fine["answer_text"]) == (2, 2.0, "é,\n")
        assert (fine["valid"], wrong["valid"], none["valid"]) == (True, False, False)
        assert wrong["n"] is None
    else:
        assert (fine["n"], fine["share"], fine["answer_text"]) == ("2", "2.0", "é,\n")
        assert (fine["valid"], wrong["valid"], wrong["n"]) == ("True", "False", "")
    assert fine["tags"] == '["a","b"]'
    assert "is not of type 'integer'" in wrong["problem"]
    assert "not JSON" in none["problem"]
    # The results themselves stay, so that the table can be made again.
    assert len(read(tmp_path / "out.results.jsonl")) == 6


def test_embeddings_as_a_table(tmp_path: Path) -> None:
    async def embed(stub: Stub, body: dict[str, Any]) -> web.Response:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
        return web.json_response({"data": data, "usage": {"prompt_tokens": 4, "total_tokens": 4}})

    rows = [line("a", url="/v1/embeddings", body={"input": "text"})]
    output = tmp_path / "out.parquet"
    with Stub(embed) as stub:
        assert run(write(tmp_path / "in.jsonl", rows), output, stub.url).code == 0
    (row,) = pq.read_table(output).to_pylist()
    assert row["embedding"] == [0.5, -1.0]
    assert (row["text"], row["prompt_tokens"]) == (None, 4)


def test_json_progress_and_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(10)))
    words = ["run", str(source), "--output", str(tmp_path / "out.jsonl"), "--json-progress"]
    with Stub(shuffled) as stub:
        stub.metrics = "sglang:photon_device_idle_seconds_total 1.5\n"
        assert command.main([*words, "--url", stub.url]) == 3
    events = [json.loads(one) for one in capsys.readouterr().out.splitlines()]
    assert {one["event"] for one in events} == {"note", "progress", "summary"}
    last = events[-1]
    assert (last["rows"], last["results"], last["failed"], last["exit_code"]) == (10, 9, 1, 3)
    assert (last["prompt_tokens"], last["completion_tokens"]) == (63, 27)
    assert last["errors"] == {"http_400": 1}
    final = [one for one in events if one["event"] == "progress"][-1]
    assert (final["done"], final["failed"], final["in_flight"]) == (9, 1, 0)


def test_the_summary_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(10)))
    words = ["run", str(source), "--output", str(tmp_path / "out.jsonl")]
    with Stub(shuffled) as stub:
        assert command.main([*words, "--url", stub.url]) == 3
    said = capsys.readouterr()
    assert "9 of 10 rows have a result" in said.out
    assert "without a result: 1 (this run: http_400 1)" in said.out
    assert "tokens of this run: 63 in, 27 out" in said.out
    assert "batch: 10 rows, 0 pictures" in said.err
    assert "batch: line 6, row-5: http_400: no" in said.err
    assert "Priority: " in said.err


def test_idle_time_of_the_device() -> None:
    meter = IdleMeter()
    name = "sglang:photon_device_idle_seconds_total"
    labels = '{model_name="m",tp_rank="%d",cause="%s"}'

    def text(*values: float, unfed: float = 0.0) -> str:
        pairs = [(rank, cause) for rank in (0, 1) for cause in ("late", "plan")]
        lines = [f"{name}{labels % pair} {one}" for pair, one in zip(pairs, values, strict=True)]
        rank = '{model_name="m",tp_rank="1"}'
        lines.append(f"sglang:photon_device_unfed_seconds_total{rank} {unfed}")
        return "\n".join(lines) + "\n"

    assert meter.sample("nothing of that kind 1.0\n", 0.0) is None
    assert meter.sample(text(1, 2, 3, 4), 10.0) is None
    # Rank 0 was idle for 1 s more, rank 1 for 3 s and 2 s with nothing to do: 3 s of 20 s.
    assert meter.sample(text(1.5, 2.5, 4, 6, unfed=2.0), 30.0) == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("info", "value", "note"),
    [
        (None, None, "does not tell"),
        ({"version": "x"}, None, "does not tell"),
        ({"enable_priority_scheduling": False}, None, "has no priorities"),
        ({"enable_priority_scheduling": True}, None, "nothing is below"),
        ({"enable_priority_scheduling": True, "default_priority_value": 5}, -95, ""),
        (
            {
                "enable_priority_scheduling": True,
                "default_priority_value": 5,
                "schedule_low_priority_values_first": True,
            },
            105,
            "",
        ),
    ],
)
def test_the_priority_below_others(info: Any, value: int | None, note: str) -> None:
    found = below_others(info)
    assert found.value == value
    assert note in found.note


def test_a_rows_own_fields_win(tmp_path: Path) -> None:
    rows = [line("a"), line("b")]
    rows[1]["body"] |= {"priority": 7, "model": "own", "response_format": {"type": "text"}}
    source = write(tmp_path / "in.jsonl", rows)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    flags = ("--model", "other", "--schema", str(tmp_path / "schema.json"))
    with Stub() as stub:
        stub.info = {"enable_priority_scheduling": True, "default_priority_value": 0}
        assert run(source, tmp_path / "out.jsonl", stub.url, *flags).code == 0
        first, second = sorted(stub.bodies, key=asked)
    assert (first["priority"], first["model"]) == (-100, "other")
    assert first["response_format"]["type"] == "json_schema"
    assert (second["priority"], second["model"]) == (7, "own")
    assert second["response_format"] == {"type": "text"}


def test_two_servers_share_the_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(200)))
    with Stub(delay_s=0.01) as one, Stub(delay_s=0.01) as other:
        ended = run(source, tmp_path / "out.jsonl", one.url, "--url", other.url)
        shares = (len(one.bodies), len(other.bodies))
    assert ended.code == 0
    assert sum(shares) == 200
    assert min(shares) > 40


def test_another_key_is_asked_for_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [line("a")])
    with Stub() as stub:
        stub.key = "secret"
        assert run(source, tmp_path / "out.jsonl", stub.url).code == 2
        assert "asks for an API key" in capsys.readouterr().err
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("THE_KEY", "secret")
            ended = run(source, tmp_path / "out.jsonl", stub.url, "--api-key-env", "THE_KEY")
    assert (ended.code, ended.ids) == (0, ["a"])


def test_overwrite_gives_nothing_up_for_a_bad_input(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line("a")])
    output = tmp_path / "out.jsonl"
    with Stub() as stub:
        assert run(source, output, stub.url).code == 0
        write(source, [line(None)])
        assert run(source, output, stub.url, "--overwrite").code == 1
    assert [one["custom_id"] for one in read(output)] == ["a"]


def test_the_bar_shows_and_goes(capsys: pytest.CaptureFixture[str]) -> None:
    bar, tally = Bar(), Tally(total=10)
    bar.say("before")
    tally.done, tally.failed, tally.idle, tally.away = 3, 1, 0.25, True
    bar.show(tally)
    bar.say("[beside]")
    bar.show(tally)
    bar.close()
    said = capsys.readouterr().err
    assert "before" in said
    assert "[beside]" in said
    assert "errors 1" in tally.words()
    assert "GPU idle 25.0%" in tally.words()
    assert "waiting for the server" in tally.words()


def test_time_counts_from_the_first_row_to_the_last() -> None:
    now = 100.0
    tally = Tally(clock=lambda: now)
    now = 130.0
    tally.restart()
    now = 134.0
    tally.stop()
    now = 150.0
    assert tally.elapsed_s == 4.0
