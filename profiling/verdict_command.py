"""`photon profile verdict`: record, judge, and say it in five lines and an exit code."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from sglang_photon.profiling.command import add_target_flags, record_from
from sglang_photon.profiling.folder import Recording
from sglang_photon.profiling.report import write_report
from sglang_photon.profiling.verdict import judge
from sglang_photon.profiling.wording import lines

MAX_IDLE_PCT = 2.0


def main(argv: Sequence[str]) -> int:
    """Return 0 for no bubbles, 2 for bubbles, 3 where it cannot be told."""
    options = _options(argv)
    blocking = None if options.blocking is None else Recording.open(options.blocking)
    if options.recording is not None:
        return _judge(Recording.open(options.recording), options, blocking)
    kept = options.output is not None
    recording = record_from(options, keep=kept, stacks_needed=False)
    try:
        code = _judge(recording, options, blocking)
        if kept:
            print(f"report: {write_report(recording)}")
    finally:
        if not kept:
            shutil.rmtree(recording.path)
    return code


def _judge(recording: Recording, options: argparse.Namespace, blocking: Recording | None) -> int:
    verdict = judge(recording, max_idle_pct=options.max_idle, blocking=blocking)
    for line in lines(verdict):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(verdict.to_json(), indent=1) + "\n")
    return verdict.exit_code


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon profile verdict",
        description="Are there bubbles, and who makes them? Exit code 0: none above --max-idle, 2: "
        "bubbles, 3: cannot tell.",
    )
    add_target_flags(parser)
    parser.add_argument("--recording", type=Path, metavar="FOLDER", help="judge this one instead")
    parser.add_argument(
        "--max-idle",
        type=float,
        default=MAX_IDLE_PCT,
        metavar="PERCENT",
        help=f"idle time that is called none ({MAX_IDLE_PCT:g})",
    )
    parser.add_argument(
        "--blocking",
        type=Path,
        metavar="FOLDER",
        help="recording of the blocking loop, for T_block",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args(list(argv))
