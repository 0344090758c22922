"""Errors a person has to act on.

Every `PhotonError` says what is wrong and what to do about it. The command line prints it as one
line, without a traceback, and exits with `exit_code`.
"""

from __future__ import annotations

import sys
from typing import NoReturn


class PhotonError(Exception):
    """What went wrong, and the remedy, in one line each.

    Args:
        problem: what was found, with the offending value.
        remedy: what the person at the keyboard can do about it.
    """

    exit_code = 1

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"


class UsageError(PhotonError):
    """A flag, an environment variable or a path that cannot be used."""

    exit_code = 2


def report(error: PhotonError) -> int:
    """Print an error as one line on stderr and return its exit code."""
    print(f"sglang-photon: error: {error}", file=sys.stderr, flush=True)
    return error.exit_code


def refuse(error: PhotonError) -> NoReturn:
    """End the process with an error.

    `SystemExit` passes through handlers that only log an `Exception`, as SGLang's plugin loader
    does.
    """
    raise SystemExit(report(error))
