"""`photon bench gpu`: what only a GPU can answer, in parts, within eight minutes.

    python bench/gpu_check.py                  # every part that is not done yet
    python bench/gpu_check.py --parts bc       # these
    python bench/gpu_check.py --rehearse       # without a GPU: everything but the CUDA calls
    python bench/gpu_check.py --report         # the figures so far, as Markdown

Parts a to c need torch, transformers, triton and this package's own folder, nothing else. Each part
runs in a process of its own with a time limit; its figures are printed and appended to a file as
they come, so a part that fails or hangs costs only itself, and a second run goes on where the first
one ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # Run as a file: what it lies in, checkout or installation, is measured.
    above = Path(__file__).resolve().parents
    sys.path[0] = str(next(p for p in above if (p / "sglang_photon" / "__init__.py").exists()))

from sglang_photon.bench.gpu.journal import Journal, markdown
from sglang_photon.bench.gpu.parts import CANNOT, PARTS, Part
from sglang_photon.bench.gpu.settings import Settings, add_arguments, settings_from
from sglang_photon.errors import PhotonError, UsageError, report

LIMIT_S = 480.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; 0 when all that were asked for are done or said why they cannot run."""
    options = _options(sys.argv[1:] if argv is None else argv)
    try:
        settings = settings_from(options)
        journal = Journal(settings.out)
        if options.run_part:
            return _run_here(PARTS[options.run_part], settings, journal)
        if options.report:
            titles = {letter: part.title for letter, part in PARTS.items()}
            print(markdown(journal.figures(), journal.ends(), titles))
            return 0
        _check_device(settings)
        if settings.rehearse:
            print("A rehearsal on the CPU: the times below say nothing about a GPU", flush=True)
        return _run_parts(options, settings, journal)
    except PhotonError as error:
        return report(error)


def _run_parts(options: argparse.Namespace, settings: Settings, journal: Journal) -> int:
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        raise UsageError(f"There is no part {unknown[0]!r}", f"Parts: {', '.join(PARTS)}")
    deadline = time.monotonic() + options.limit_s
    failed = False
    ends = journal.ends()
    for letter, part in PARTS.items():
        if letter not in options.parts:
            continue
        if letter in ends and ends[letter].done and not settings.again:
            print(f"{letter}  done before; --again measures it again", flush=True)
            continue
        left = deadline - time.monotonic()
        print(f"\n{letter}  {part.title}", flush=True)
        if left <= 0:
            journal.end(letter, f"not begun: {options.limit_s:g} s are over", 0.0)
            failed = True
            continue
        failed |= _run_apart(part, settings, journal, limit_s=min(part.limit_s, left))
    return int(failed)


def _run_apart(part: Part, settings: Settings, journal: Journal, *, limit_s: float) -> bool:
    """Run a part in a process of its own; whether it failed."""
    command = [sys.executable, str(Path(__file__).resolve()), "--run-part", part.letter]
    began = time.monotonic()
    # A session of its own: the end reaches every process that the part has started.
    process = subprocess.Popen([*command, *settings.arguments()], start_new_session=True)
    try:
        code = process.wait(limit_s)
        outcome = {0: "done", CANNOT: "cannot run here"}.get(code, f"failed, exit code {code}")
    except subprocess.TimeoutExpired:
        code, outcome = 1, f"ended at its limit of {limit_s:.0f} s"
    finally:
        _end_group(process)
    journal.end(part.letter, outcome, time.monotonic() - began)
    return code not in (0, CANNOT)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run_here(part: Part, settings: Settings, journal: Journal) -> int:
    try:
        part.run(settings, journal)
    except PhotonError as error:
        journal.figure(part.letter, "why it does not run", None, note=str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the file
        traceback.print_exc()
        journal.figure(part.letter, "why it failed", None, note=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _check_device(settings: Settings) -> None:
    import torch

    if not settings.rehearse and not torch.cuda.is_available():
        raise UsageError(
            "torch sees no CUDA device here",
            "Run it on a GPU machine, or add --rehearse to run everything but the CUDA calls",
        )


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon bench gpu",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {letter}  {part.title}" for letter, part in PARTS.items()),
    )
    add_arguments(parser)
    parser.add_argument("--parts", default="".join(PARTS), help="their letters (default: all)")
    parser.add_argument("--report", action="store_true", help="only print the figures so far")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="seconds for all parts together"
    )
    parser.add_argument("--run-part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args(list(argv))


if __name__ == "__main__":
    sys.exit(main())
