"""The console script `photon`: one word per thing that can be done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import sglang_photon
from sglang_photon.errors import UsageError, report

USAGE = """\
usage: photon COMMAND [arguments]

  serve    start a server: takes every flag of SGLang's launcher and --photon-* flags
  batch    a job over many pictures or texts: survives, and resumes
  doctor   check this machine and this installation, one line each
  bench    benchmarks: the loops, pictures, handles, your model over HTTP, a GPU check
  profile  record a running server; are there bubbles, and who makes them
  roofline the floor of a decode step and a prefill on a GPU, from sizes and data sheets
  version  print the version

Each command explains itself with --help.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if words else 2
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        return report(
            UsageError(f"There is no command {command!r}", f"Choose: {', '.join(COMMANDS)}")
        )
    return COMMANDS[command](rest)


def _serve(argv: Sequence[str]) -> int:
    from sglang_photon import launch_server

    return launch_server.main(argv)


def _batch(argv: Sequence[str]) -> int:
    from sglang_photon.batch import command

    return command.main(argv)


def _doctor(argv: Sequence[str]) -> int:
    from sglang_photon import doctor

    return doctor.main(argv)


def _roofline(argv: Sequence[str]) -> int:
    from sglang_photon.profiling.roofline import command

    return command.main(argv)


def _profile(argv: Sequence[str]) -> int:
    from sglang_photon.profiling import command

    return command.main(argv)


def _bench(argv: Sequence[str]) -> int:
    from sglang_photon.bench import __main__ as bench

    return bench.main(argv)


def _version(argv: Sequence[str]) -> int:
    del argv
    print(sglang_photon.__version__)
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": _serve,
    "batch": _batch,
    "doctor": _doctor,
    "bench": _bench,
    "profile": _profile,
    "roofline": _roofline,
    "version": _version,
}
