"""A job cut off at any moment: nothing that is on disk is lost or run again, and all of it ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_photon.batch.media import MediaRoot, mark_of
from sglang_photon.batch.rows import Fate, Outcome, Row, Usage, error_line, result_line
from sglang_photon.batch.store import Paths, Standing, Store
from tests.unit.batch.jobs import left_by, line, picture_line, png, read, run, write
from tests.unit.batch.stub import Stub, asked, echo

pytestmark = pytest.mark.timeout(240)

FORM = "JSON Lines as results come"
ROOT = MediaRoot(None)
ROWS = [
    Row(number=n, custom_id=f"row-{n}", url="/v1/completions", body={"prompt": "é" * n}, size=9)
    for n in range(1, 8)
]
FAILING = {"row-3", "row-6"}


def outcome_of(row: Row) -> Outcome:
    """As a run would commit it."""
    mark = mark_of(row, ROOT)
    if row.custom_id in FAILING:
        text = error_line(row.custom_id, mark, code="bad", message="é\n")
        return Outcome(custom_id=row.custom_id, mark=mark, fate=Fate.FAILED, line=text, code="bad")
    body = {"choices": [{"text": "ü\n"}], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
    text = result_line(row.custom_id, mark, status=200, request_id="", body=body)
    usage = Usage(prompt=2, completion=1)
    return Outcome(custom_id=row.custom_id, mark=mark, fate=Fate.DONE, line=text, usage=usage)


def paths(folder: Path) -> Paths:
    return Paths.of(folder / "out.jsonl", errors=None, derived=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Results and journal of a job that has ended, two rows per commit."""
    files = paths(tmp_path_factory.mktemp("whole"))
    with Store(paths=files, form=FORM) as store:
        store.begin([])
        for start in range(0, len(ROWS), 2):
            store.commit([outcome_of(row) for row in ROWS[start : start + 2]])
    return files.results.read_bytes(), files.journal.read_bytes()


def resume(folder: Path, results: bytes, journal: bytes) -> None:
    """Open a job with these files, check what it knows, and run the rest."""
    files = paths(folder)
    files.results.write_bytes(results)
    files.journal.write_bytes(journal)
    files.errors.unlink(missing_ok=True)
    lines = results.split(b"\n")[:-1]
    on_disk = {json.loads(one)["custom_id"] for one in lines}
    recorded = {json.loads(one).get("id") for one in journal.split(b"\n")[:-1]}
    with Store(paths=files, form=FORM) as store:
        assert store.done.keys() == on_disk
        standings = {row.custom_id: store.standing(row, ROOT) for row in ROWS}
        expected = {
            name: Standing.DONE
            if name in on_disk
            else Standing.FAILED
            if name in FAILING & recorded
            else Standing.NEW
            for name in standings
        }
        assert standings == expected
        left = [row for row in ROWS if standings[row.custom_id] is Standing.NEW]
        store.begin([row.custom_id for row in left])
        for row in left:
            store.commit([outcome_of(row)])
        assert store.usage == Usage(prompt=10, completion=5)
    ended = left_by(0, files.output)
    assert sorted(ended.ids) == sorted({row.custom_id for row in ROWS} - FAILING)
    assert sorted(ended.error_ids) == sorted(FAILING)
    with Store(paths=files, form=FORM) as store:
        assert {store.standing(row, ROOT) for row in ROWS} == {Standing.DONE, Standing.FAILED}


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of jobs, and only what is in the files matters."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.usefixtures("no_fsync")
def test_results_cut_at_every_byte(tmp_path: Path, whole: tuple[bytes, bytes]) -> None:
    results, journal = whole
    for end in range(len(results) + 1):
        resume(tmp_path, results[:end], journal)


@pytest.mark.usefixtures("no_fsync")
def test_journal_cut_at_every_byte(tmp_path: Path, whole: tuple[bytes, bytes]) -> None:
    results, journal = whole
    for end in range(journal.index(b"\n") + 1, len(journal) + 1):
        resume(tmp_path, results, journal[:end])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_both_cut_anywhere_and_zeroed_behind(
    tmp_path_factory: pytest.TempPathFactory, whole: tuple[bytes, bytes], data: st.DataObject
) -> None:
    """After a power loss a file may have its length and zeros in place of its last blocks."""
    results, journal = whole
    end = data.draw(st.integers(0, len(results)))
    journal_end = data.draw(st.integers(journal.index(b"\n") + 1, len(journal)))
    zeros = data.draw(st.sampled_from([b"", b"\0" * 100]))
    folder = tmp_path_factory.mktemp("cut")
    kept = results[:end]
    resume(folder, kept[: kept.rfind(b"\n") + 1] if zeros else kept, journal[:journal_end])
    files = paths(folder)
    files.results.write_bytes(kept + zeros)
    with Store(paths=files, form=FORM) as store:
        assert len(store.done) == kept.count(b"\n")


def test_a_header_that_is_cut_off_is_a_new_job_or_refused(
    tmp_path: Path, whole: tuple[bytes, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    results, journal = whole
    files = paths(tmp_path)
    for end in range(journal.index(b"\n") + 1):
        files.journal.write_bytes(journal[:end])
        files.results.write_bytes(b"")
        with Store(paths=files, form=FORM) as store:
            assert not store.known
    files.journal.unlink()
    files.results.write_bytes(results)
    source = write(tmp_path / "in.jsonl", [line("a")])
    assert run(source, files.output, "http://127.0.0.1:9").code == 2
    assert "is there already" in capsys.readouterr().err
    assert files.results.read_bytes() == results


def start(source: Path, output: Path, url: str, *flags: str) -> subprocess.Popen[bytes]:
    words = ["run", str(source), "--output", str(output), "--url", url, "--quiet", *flags]
    return subprocess.Popen([sys.executable, "-m", "sglang_photon.batch", *words])


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    count, kills = 600, 6
    chance = random.Random(7)
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(count)))
    output = tmp_path / "out.jsonl"
    safe: set[str] = set()
    with Stub(delay_s=0.05) as stub:
        for _ in range(kills):
            process = start(source, output, stub.url, "--in-flight", "8")
            goal = sum(stub.answered.values()) + chance.randint(1, count // kills)
            try:
                stub.wait_for(lambda: sum(stub.answered.values()) >= goal)  # noqa: B023
                time.sleep(chance.uniform(0, 0.03))  # Anywhere between two commits.
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            stub.wait_for(lambda: stub.in_flight == 0)
            again = {asked(body) for body in stub.bodies} & safe
            assert not again, "run again although its result was on disk"
            text = output.read_bytes() if output.exists() else b""
            safe = {json.loads(one)["custom_id"] for one in text.split(b"\n")[:-1]}
            stub.bodies.clear()
        ended = run(source, output, stub.url)
        assert not {asked(body) for body in stub.bodies} & safe
    assert 0 < len(safe) < count
    assert ended.code == 0
    assert len(ended.ids) == len(set(ended.ids)) == count


def test_ctrl_c_lets_what_is_in_flight_end(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(200)))
    output = tmp_path / "out.jsonl"
    with Stub(delay_s=0.5) as stub:
        process = start(source, output, stub.url, "--in-flight", "4")
        stub.wait_for(lambda: stub.in_flight == 4)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        ended = left_by(130, output)
        assert len(ended.ids) == sum(stub.answered.values()) >= 4
        assert {one["error"]["code"] for one in ended.errors} == {"batch_cancelled"}
        assert len(ended.ids) + len(ended.errors) == 200


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    async def never(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        import asyncio

        await asyncio.sleep(600)
        return await echo(stub, body)

    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(20)))
    words = ["run", str(source), "--output", str(tmp_path / "out.jsonl"), "--in-flight", "4"]
    with Stub(never) as stub:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang_photon.batch", *words, "--url", stub.url],
            stderr=subprocess.PIPE,
            text=True,
        )
        stub.wait_for(lambda: stub.in_flight == 4)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("Stopping" in said for said in process.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 130
        stub.wait_for(lambda: stub.in_flight == 0)


def test_a_server_that_restarts_is_waited_for(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(300)))
    output = tmp_path / "out.jsonl"
    first = Stub(delay_s=0.02)
    with first:
        process = start(source, output, first.url, "--in-flight", "8")
        first.wait_for(lambda: sum(first.answered.values()) >= 40)
    time.sleep(0.5)
    with Stub(delay_s=0.0, port=first.port):
        assert process.wait(60) == 0
    ended = left_by(0, output)
    assert len(ended.ids) == len(set(ended.ids)) == 300


def test_a_server_that_stays_away_ends_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(300)))
    output = tmp_path / "out.jsonl"

    async def once(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        if len(stub.answered) >= 20:
            stub.close_soon()
        return await echo(stub, body)

    with Stub(once) as stub:
        ended = run(source, output, stub.url, "--in-flight", "4", "--wait-server", "1s")
    assert ended.code == 1
    assert "has not answered" in capsys.readouterr().err
    assert len(ended.ids) >= 20
    assert not ended.errors
    with Stub() as stub:
        assert run(source, output, stub.url).code == 0
        assert len(stub.bodies) == 300 - len(ended.ids)


def test_busy_servers_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_photon.batch.client.FIRST_PAUSE_S", 0.001)

    async def busy(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        name = asked(body)
        tries = sum(asked(other) == name for other in stub.bodies)
        if name == "never" or tries < 3:
            return web.json_response({"error": "busy"}, status=503 if tries % 2 else 429)
        return await echo(stub, body)

    source = write(tmp_path / "in.jsonl", [line("a"), line("b"), line("never")])
    output = tmp_path / "out.jsonl"
    with Stub(busy) as stub:
        ended = run(source, output, stub.url)
    assert sorted(ended.ids) == ["a", "b"]
    assert ended.code == 3
    assert ended.error("never")["response"]["status_code"] in (429, 503)
    with Stub() as stub:
        again = run(source, output, stub.url)
        assert [asked(body) for body in stub.bodies] == ["never"]
    assert again.code == 0
    assert not again.errors


def test_failed_rows_are_left_alone_until_asked(tmp_path: Path) -> None:
    async def reject(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        if asked(body) == "b":
            return web.json_response({"error": {"message": "no"}}, status=400)
        return await echo(stub, body)

    source = write(tmp_path / "in.jsonl", [line("a"), line("b")])
    output = tmp_path / "out.jsonl"
    with Stub(reject) as stub:
        assert run(source, output, stub.url).code == 3
        (tmp_path / "out.errors.jsonl").unlink()
        again = run(source, output, stub.url)
        assert (again.code, again.error_ids, len(stub.bodies)) == (3, ["b"], 2)
    with Stub() as stub:
        mended = run(source, output, stub.url, "--retry-failed")
        assert (mended.code, mended.ids, mended.errors) == (0, ["a", "b"], [])
        assert len(stub.bodies) == 1


@pytest.mark.parametrize("rule", ["refuse", "rerun", "keep"])
def test_changed_added_and_dropped_rows(
    tmp_path: Path, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [line("a"), line("b"), line("c")])
    output = tmp_path / "out.jsonl"
    with Stub() as stub:
        assert run(source, output, stub.url).code == 0
        write(source, [line("a"), line("b", "other"), line("d")])
        stub.bodies.clear()
        ended = run(source, output, stub.url, "--changed", rule)
        sent = sorted(asked(body) for body in stub.bodies)
    expected = {"refuse": [], "rerun": ["d", "other"], "keep": ["d"]}
    assert sent == expected[rule]
    if rule == "refuse":
        assert ended.code == 1
        assert "line 2: another request" in capsys.readouterr().err
        assert ended.ids == ["a", "b", "c"]
    else:
        assert ended.code == 0
        assert sorted(ended.ids) == ["a", "b", "c", "d"]


def test_a_changed_picture_is_another_row_and_a_touched_one_is_not(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(png())
    source = write(tmp_path / "in.jsonl", [picture_line("a", "picture.png")])
    output = tmp_path / "out.jsonl"
    root = ("--media-root", str(tmp_path))
    with Stub() as stub:
        assert run(source, output, stub.url, *root).code == 0
        os.utime(picture, (1, 1))
        assert run(source, output, stub.url, *root).code == 0
        picture.write_bytes(png(colour="blue"))
        assert run(source, output, stub.url, *root).code == 1
        assert len(stub.bodies) == 1
        assert run(source, output, stub.url, *root, "--changed", "rerun").code == 0
        assert len(stub.bodies) == 2
    assert len(read(output)) == 1


def test_two_runs_of_one_job_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [line("a")])
    output = tmp_path / "out.jsonl"
    with Store(paths=paths(tmp_path), form=FORM):
        assert run(source, output, "http://127.0.0.1:9").code == 2
    assert "Another run is working" in capsys.readouterr().err


def test_a_full_disk_ends_the_job_and_leaves_whole_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(200)))
    output = tmp_path / "out.jsonl"
    code = (
        "import resource, sys; from sglang_photon.batch.command import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); sys.exit(main(sys.argv[1:]))"
    )
    with Stub() as stub:
        words = ["run", str(source), "--output", str(output), "--url", stub.url, "--quiet"]
        full = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert full.returncode == 1
        assert "cannot be written (File too large)" in full.stderr
        assert output.read_bytes().endswith(b"\n")
        done = len(read(output))
        assert 0 < done < 200
        stub.bodies.clear()
        ended = run(source, output, stub.url)
        assert len(stub.bodies) == 200 - done
    assert len(set(ended.ids)) == len(ended.ids) == 200
