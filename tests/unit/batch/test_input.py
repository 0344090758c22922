"""Bad input: refused before the start with its line number, or an error row; never passed over."""

from __future__ import annotations

import base64
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from sglang_photon.batch import command
from sglang_photon.batch.lines import LONGEST_LINE, Bad, JsonLines, parse_line
from sglang_photon.batch.rows import Row
from sglang_photon.batch.table import fill
from sglang_photon.errors import UsageError
from tests.unit.batch.jobs import left_by, line, picture_line, png, read, run, write
from tests.unit.batch.stub import Stub, asked

GOOD = json.dumps(line("a")).encode()


def rows_of(path: Path) -> list[Row | Bad]:
    return list(JsonLines(str(path), beside=path.parent).rows())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", "not JSON"),
        (GOOD[:-9], "half of it?"),
        (b"[1]\n", "a JSON array, not an object"),
        (b"7\n", "a JSON number, not an object"),
        (json.dumps({**line("a"), "custom": 1}).encode(), "unknown key 'custom'"),
        (json.dumps(line("")).encode(), "must be a string that is not empty"),
        (json.dumps(line(None)).encode(), "custom_id is null"),
        (json.dumps(line("a", method="GET")).encode(), 'method is "GET"'),
        (json.dumps(line("a", url=3)).encode(), "url is 3"),
        (json.dumps(line("a", body=[])).encode(), "body is a JSON array"),
        (b'{"custom_id": "a", "url": "/v1/completions"}', "no body"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_what_is_wrong_with_a_line(text: bytes, problem: str) -> None:
    found = parse_line(text, 5)
    assert isinstance(found, Bad)
    assert found.number == 5
    assert problem in found.problem


def test_bom_crlf_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    second = json.dumps(line("b")).encode()
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n  \n" + second)
    source = JsonLines(str(path), beside=tmp_path)
    found = list(source.rows())
    assert [(r.number, r.custom_id) for r in found if isinstance(r, Row)] == [(1, "a"), (4, "b")]
    assert source.blank == 2


def test_an_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps([line("a"), line("b")], indent=1))
    (bad,) = rows_of(path)
    assert isinstance(bad, Bad)
    assert "one object per line" in bad.problem


def test_a_line_of_20_mb_is_a_row_and_one_beyond_the_limit_is_not(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(line("a", "x" * (20 << 20))).encode() + b"\n")
        file.write(b'{"custom_id": "' + b"y" * LONGEST_LINE + b'"}\n')
        file.write(json.dumps(line("c")).encode() + b"\n")
    first, second, third = rows_of(path)
    assert isinstance(first, Row)
    assert isinstance(second, Bad)
    assert second == Bad(2, "longer than 64 MiB")
    assert isinstance(third, Row)
    assert third.number == 3


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_input(tmp_path: Path, pack: Any) -> None:
    text = b"".join(json.dumps(line(f"row-{n}")).encode() + b"\n" for n in range(5000))
    path = tmp_path / "in.jsonl.packed"
    # Two frames in one file, as `cat` makes them.
    path.write_bytes(pack(text) + pack(json.dumps(line("last")).encode()))
    found = [row.custom_id for row in rows_of(path) if isinstance(row, Row)]
    assert found == [*(f"row-{n}" for n in range(5000)), "last"]
    path.write_bytes(pack(text)[:-20])
    with pytest.raises(UsageError, match="cannot be read to its end"):
        rows_of(path)


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.BytesIO(GOOD + b"\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
    with Stub() as stub:
        assert run("-", tmp_path / "out.jsonl", stub.url).ids == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.journal"]


def test_twenty_of_many_bad_lines_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", (line(n) for n in range(1, 31)))
    assert run(source, tmp_path / "out.jsonl", "http://127.0.0.1:9").code == 1
    said = capsys.readouterr().err
    assert "30 lines of the input cannot be run" in said
    assert "line 20: " in said
    assert "line 21: " not in said
    assert "and 10 more" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["run", "missing.jsonl", "--output", "out.jsonl"], "missing.jsonl cannot be read"),
        (["run", "in.jsonl"], "No --output"),
        (["images", "missing", "--prompt", "x", "--output", "o.jsonl"], "is no folder"),
        (
            ["run", "in.jsonl", "--output", "o.jsonl", "--url", "u", "--", "--tp", "2"],
            "--url names",
        ),
        (["run", "in.jsonl", "--output", "o.jsonl", "--in-flight", "0"], "--in-flight"),
        (["run", "in.jsonl", "--output", "o.jsonl", "--deadline", "soon"], "no duration"),
        (["run", "in.jsonl", "--output", "o.jsonl", "--schema", "no.json"], "cannot be read"),
        (["run", "in.jsonl", "--output", "o.jsonl", "--api-key-env", "NO_SUCH"], "not set"),
        (["run", "in.jsonl", "--output", "in.jsonl", "--overwrite"], "is the input"),
        (["fly"], "invalid choice"),
    ],
)
def test_mistaken_commands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(GOOD)
    assert command.main(words) == 2
    assert problem in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_empty_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [])
    assert run(source, tmp_path / "out.jsonl", "http://127.0.0.1:9").code == 1
    assert "has no rows" in capsys.readouterr().err


def test_rows_that_cannot_be_sent_become_error_rows(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (tmp_path / "secret.png").write_bytes(png())
    (media / "link.png").symlink_to(tmp_path / "secret.png")
    (media / "good.png").write_bytes(png())
    (media / "text.png").write_text("not a picture")
    (media / "empty.png").touch()
    (media / "wide.png").write_bytes(png((3000, 1000)))
    data = "data:image/png;base64," + base64.b64encode(png()).decode()
    rows = {
        "good": picture_line("good", "good.png", data, f"file://{media}/good.png"),
        "stream": line("stream", body={"messages": [], "stream": True}),
        "unknown_url": line("unknown_url", url="/v1/files"),
        "outside": picture_line("outside", "../secret.png"),
        "absolute": picture_line("absolute", f"file://{tmp_path}/secret.png"),
        "link": picture_line("link", "link.png"),
        "elsewhere": picture_line("elsewhere", "file://host/good.png"),
        "missing": picture_line("missing", "missing.png"),
        "folder": picture_line("folder", "."),
        "nul": picture_line("nul", "a\0b.png"),
        "text": picture_line("text", "text.png"),
        "empty": picture_line("empty", "empty.png"),
        "wide": picture_line("wide", "wide.png"),
        "no_base64": picture_line("no_base64", "data:image/png;base64,!!!!"),
        "no_picture": picture_line("no_picture", "data:image/png;base64,AAAA"),
        "private": picture_line("private", "http://127.0.0.1:1/x.png"),
        "ftp": picture_line("ftp", "ftp://example.org/x.png"),
    }
    video = {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}
    rows["video"] = line("video", body={"messages": [{"role": "user", "content": [video]}]})
    source = write(tmp_path / "in.jsonl", rows.values())
    flags = ("--media-root", str(media), "--max-megapixels", "2")
    with Stub() as stub:
        ended = run(source, tmp_path / "out.jsonl", stub.url, *flags)
        sent = len(stub.bodies)
    assert ended.code == 3
    assert (ended.ids, sent) == (["good"], 1)
    codes = {one["custom_id"]: one["error"]["code"] for one in ended.errors}
    forbidden = dict.fromkeys(
        ("outside", "absolute", "link", "elsewhere", "private", "ftp"), "picture_forbidden"
    )
    unreadable = dict.fromkeys(
        ("missing", "folder", "nul", "text", "empty", "no_base64", "no_picture"),
        "picture_unreadable",
    )
    assert codes == {
        "stream": "stream_not_supported",
        "unknown_url": "unknown_url",
        "video": "unsupported_media",
        "wide": "picture_too_large",
        **forbidden,
        **unreadable,
    }
    assert all(one["response"] is None for one in ended.errors)


def test_without_a_media_root_no_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    source = write(tmp_path / "in.jsonl", [picture_line("a", f"file://{tmp_path}/a.png")])
    with Stub() as stub:
        ended = run(source, tmp_path / "out.jsonl", stub.url)
    assert "no --media-root is given" in ended.error("a")["error"]["message"]
    assert not stub.bodies


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.png", "deep/er/a b#%20.PNG", "deep/é.png", ".hidden/c.png", "d: e.png"):
        (folder / name).write_bytes(png())
    (folder / "notes.txt").write_text("no picture")
    output = tmp_path / "out.jsonl"
    words = ["images", str(folder), "--prompt", "What is it?", "--max-tokens", "5"]
    with Stub() as stub:
        assert command.main([*words, "--output", str(output), "--url", stub.url, "--quiet"]) == 0
        bodies = stub.bodies
    names = ["b.png", "d: e.png", "deep/er/a b#%20.PNG", "deep/é.png"]
    assert sorted(left_by(0, output).ids) == names
    for body in bodies:
        picture, text = body["messages"][0]["content"]
        assert picture["image_url"]["url"].startswith("data:image/png;base64,")
        assert text == {"type": "text", "text": "What is it?"}
        assert body["max_tokens"] == 5


def test_a_csv_table(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    table = tmp_path / "t.csv"
    table.write_text('name,file,"odd, name"\nx,a.png,"1\n2"\ny,./a.png,é\n', encoding="utf-8-sig")
    output = tmp_path / "out.jsonl"
    words = ["table", str(table), "--prompt-template", "{name}: {{{odd, name}}}", "--quiet"]
    words += ["--image-column", "file", "--id-column", "name", "--media-root", str(tmp_path)]
    with Stub() as stub:
        assert command.main([*words, "--output", str(output), "--url", stub.url]) == 0
        asks = sorted(asked(body) for body in stub.bodies)
    assert asks == ["x: {1\n2}", "y: {é}"]
    assert sorted(left_by(0, output).ids) == ["x", "y"]


def test_a_parquet_table_with_pictures_in_it(tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    columns = {
        "n": [1, 2, 3],
        "image": [{"bytes": png(), "path": None}, {"bytes": png(), "path": "x"}, None],
    }
    pq.write_table(pa.table(columns), table)
    output = tmp_path / "out.jsonl"
    words = ["table", str(table), "--prompt-template", "{n}", "--image-column", "image", "--quiet"]
    with Stub() as stub:
        assert command.main([*words, "--output", str(output), "--url", stub.url]) == 1
        pq.write_table(pa.table(columns).slice(0, 2), table)
        assert command.main([*words, "--output", str(output), "--url", stub.url]) == 0
        urls = [body["messages"][0]["content"][0]["image_url"]["url"] for body in stub.bodies]
    assert [one["custom_id"] for one in sorted(read(output), key=lambda o: o["custom_id"])] == [
        "1",
        "2",
    ]
    assert all(url.startswith("data:image/png;base64,") for url in urls)


def test_a_column_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    words = ["table", str(tmp_path / "t.csv"), "--prompt-template", "{c}", "--output", "o.jsonl"]
    assert command.main(words) == 2
    assert "no column 'c'. Its columns: a, b" in capsys.readouterr().err


def test_a_template_means_nothing_but_columns() -> None:
    record = {"a": "{b}", "b": 2, "n": None}
    assert fill("{a} {b} {n} {{a}} {a.b} %s", record) == "{b} 2  {a}  %s"


def test_a_dry_run_finds_what_would_fail_and_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.png").write_bytes(png((300, 300)))
    (tmp_path / "cut.png").write_bytes(png((300, 300))[:-40])
    rows = [
        picture_line("good", "good.png"),
        picture_line("cut", "cut.png"),
        picture_line("web", "http://example.org/x.png"),
    ]
    source = write(tmp_path / "in.jsonl", rows)
    flags = ["--media-root", str(tmp_path), "--dry-run", "--model-path", "demo"]
    assert command.main(["run", str(source), *flags]) == 3
    said = capsys.readouterr().out
    assert "3 rows, 1 pictures decoded, 1 on the web" in said
    assert "line 2: picture_unreadable: cut.png is broken" in said
    assert "tokens of text" in said
    assert not (tmp_path / "out.jsonl").exists()
