"""The command line of `photon batch`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sglang_photon.errors import UsageError

FORMS = {
    ("jsonl", False): "JSON Lines as results come",
    ("jsonl", True): "JSON Lines in the order of the input",
    ("parquet", False): "a Parquet table",
    ("parquet", True): "a Parquet table in the order of the input",
    ("csv", False): "a CSV table",
    ("csv", True): "a CSV table in the order of the input",
}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_IN_FLIGHT = 256
EPILOG = """\
Everything behind -- goes to the server that is started: photon batch run IN --output OUT -- --tp 2
Exit codes: 0 all rows have a result; 3 some rows have none, or not a valid one; 1 the job could not
run, 2 the command is mistaken; 130 stopped by hand. The same command resumes a job.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options, checked as far as they can be alone.

    Raises:
        UsageError: a flag or a combination that makes no sense.
    """
    words = list(argv)
    server_flags: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, server_flags = words[:cut], words[cut + 1 :]
    options = _parser().parse_args(words)
    options.server_flags = server_flags
    _complete(options)
    return options


def _complete(options: argparse.Namespace) -> None:
    if options.output is None and not options.dry_run:
        raise UsageError("No --output is given", "Say where results go: --output OUT.jsonl")
    given = getattr(options, "input", None) or getattr(options, "table", None)
    mine = (options.output, options.errors)
    if given is not None and any(p is not None and _same(Path(given), p) for p in mine):
        raise UsageError(f"{given} is the input", "Give another --output and --errors")
    suffix = options.output.suffix.lstrip(".").lower() if options.output is not None else ""
    options.to = options.to or (suffix if suffix in ("parquet", "csv") else "jsonl")
    options.form = FORMS[options.to, options.keep_order]
    if options.url and (options.server_flags or options.model_path or options.replicas != 1):
        raise UsageError(
            "--url names a running server, and other flags describe one to start",
            "Give --url, or --model-path, --replicas and flags behind --",
        )
    for name in ("in_flight", "replicas", "ahead_mb", "max_picture_mb", "max_megapixels"):
        if getattr(options, name) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} is not above 0", "Give a larger number")


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def duration(text: str) -> float:
    """Seconds of `90`, `90s`, `30m`, `2h` or `1d`."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 90s, 30m, 2h")
    return float(match[1]) * SECONDS[match[2]]


class _Parser(argparse.ArgumentParser):
    """argparse that raises our error instead of printing a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"Run `{self.prog} --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="photon batch",
        description="Run a job over many pictures or texts; survives, and resumes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = _command(commands, "run", "an OpenAI batch file: JSON Lines, also gzip or zstd")
    run.add_argument("input", metavar="IN.jsonl", help="the file, or - for standard input")
    images = _command(commands, "images", "one question about every picture in a folder")
    images.add_argument("folder", metavar="DIR", type=Path)
    images.add_argument("--prompt", required=True, metavar="TEXT")
    table = _command(commands, "table", "one request for every row of a CSV or Parquet file")
    table.add_argument("table", metavar="FILE", type=Path)
    table.add_argument("--prompt-template", required=True, metavar="T", help="with {column} in it")
    table.add_argument("--image-column", metavar="C", help="paths, addresses, or bytes (Parquet)")
    table.add_argument("--id-column", metavar="C", help="names the rows (default: their numbers)")
    for command in (run, table):
        command.add_argument(
            "--media-root", metavar="DIR", type=Path, help="local pictures may lie below it"
        )
    for command in (images, table):
        command.add_argument("--max-tokens", type=int, metavar="N", help="of each answer")
        command.add_argument("--temperature", type=float, metavar="T")
    return parser


def _command(
    commands: argparse._SubParsersAction[_Parser], name: str, about: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_output(parser.add_argument_group("output"))
    _add_server(parser.add_argument_group("server"))
    _add_requests(parser.add_argument_group("requests"))
    _add_flow(parser.add_argument_group("flow"))
    return parser


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--output", type=Path, metavar="FILE", help="where results go")
    group.add_argument(
        "--errors", type=Path, metavar="FILE", help="rows without one (default: OUT.errors.jsonl)"
    )
    group.add_argument(
        "--to", choices=["jsonl", "parquet", "csv"], help="default: by the output's name"
    )
    group.add_argument("--keep-order", action="store_true", help="results in the input's order")
    group.add_argument("--overwrite", action="store_true", help="forget an earlier job's output")
    group.add_argument(
        "--changed",
        choices=["refuse", "rerun", "keep"],
        default="refuse",
        help="results of rows that have changed since (default: refuse to start)",
    )
    group.add_argument("--retry-failed", action="store_true", help="run rows again that failed")
    group.add_argument("--dry-run", action="store_true", help="check every row, send nothing")
    shown = group.add_mutually_exclusive_group()
    shown.add_argument("--quiet", action="store_true", help="show nothing but errors")
    shown.add_argument("--json-progress", action="store_true", help="JSON lines on stdout")


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--url", action="append", metavar="URL", help="a running server; several times for several"
    )
    group.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable with the server's API key"
    )
    group.add_argument(
        "--model-path", metavar="MODEL", help="start a server with it (default: demo)"
    )
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="servers to start")
    group.add_argument(
        "--priority",
        choices=["below", "same"],
        default="below",
        help="below (default): other people's requests come first, where the server has priorities",
    )


def _add_requests(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="NAME", help="for requests that name no model")
    group.add_argument(
        "--schema", type=Path, metavar="FILE", help="JSON schema of every answer (chats)"
    )
    group.add_argument(
        "--validate", action="store_true", help="mark answers that are not JSON of the schema"
    )
    group.add_argument(
        "--allow-private", action="store_true", help="fetch pictures from private addresses too"
    )
    group.add_argument("--max-picture-mb", type=int, default=32, metavar="MB")
    group.add_argument("--max-megapixels", type=float, default=64, metavar="MP")


def _add_flow(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--in-flight",
        type=int,
        default=MOST_IN_FLIGHT,
        metavar="N",
        help=f"most requests at one server (default {MOST_IN_FLIGHT}; how many is measured)",
    )
    group.add_argument(
        "--ahead-mb", type=int, default=96, metavar="MB", help="of rows in memory (default 96)"
    )
    group.add_argument("--deadline", type=duration, metavar="T", help="end after 90s, 30m, 2h")
    group.add_argument(
        "--timeout", type=duration, default=600.0, metavar="T", help="of one request (10m)"
    )
    group.add_argument(
        "--wait-server", type=duration, default=300.0, metavar="T", help="if it is away (5m)"
    )
    group.add_argument(
        "--grace", type=duration, default=30.0, metavar="T", help="after Ctrl-C (30s)"
    )
