"""Photon's settings: flags and environment, merged once, checked once, frozen.

A field is one fact with two spellings, both derived from its name: `loop` is `--photon-loop` on the
command line and `SGLANG_PHOTON_LOOP` in the environment. A flag wins. Child processes read the
environment that `PhotonConfig.to_environment` wrote, so every process of a server agrees.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from sglang_photon.errors import UsageError

SWITCH = "SGLANG_PHOTON"
"""Environment variable that turns the plugin on; unset, the installed package does nothing."""

LOOPS = {
    "auto": "Photon's scheduler process with the fastest loop that is proven for the configuration",
    "photon": "the two-slot loop, or an error where it is not eligible",
    "sglang": "stock SGLang with its overlap loop: no patch of ours in any process",
    "blocking": "stock SGLang without overlap: no patch of ours in any process",
}
LANES = {
    "auto": "cuda on a GPU, inline without one",
    "cuda": "a compute stream, and a copy stream beside it",
    "inline": "the scheduler's own thread",
    "thread": "a worker thread: for tests, slower on few cores",
}
PREFILL_OVERLAPS = {
    "auto": "launch a prefill before the last one is committed, unless its first token is there",
    "always": "launch it before: most throughput",
    "never": "commit the last one first: earliest first token",
}
METERS = {
    "auto": "Photon's scheduler records its steps, stock SGLang stays untouched",
    "on": "the stock loops too: their scheduler is subclassed to take times, and for nothing else",
}
PICTURES = {
    "auto": "turned as EXIF says, transparency on white, 16 bits per channel scaled to 8",
    "sglang": "as SGLang decodes them",
}
CHOICES = {
    "loop": LOOPS,
    "lane": LANES,
    "prefill_overlap": PREFILL_OVERLAPS,
    "meter": METERS,
    "pictures": PICTURES,
}
"""Fields that take one of a few words, each with what it means."""

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class PhotonConfig:
    """Settings of one server.

    Attributes:
        loop: which scheduler loop runs, a key of `LOOPS`.
        lane: where the two-slot loop runs its forwards, a key of `LANES`.
        prefill_overlap: what it does between two prefills, a key of `PREFILL_OVERLAPS`.
        meter: which loops record their steps for `photon profile`, a key of `METERS`.
        shutdown_limit: seconds after SIGTERM until requests that still run are aborted.
        pictures: what is done to a picture before the model's processor, a key of `PICTURES`.
        mm_budget_mb: megabytes of host memory for pictures that are decoded or wait; 0: a quarter
            of the machine's.
        allow_version: start with another SGLang release than the one this package is built for.
    """

    loop: str = "auto"
    lane: str = "auto"
    prefill_overlap: str = "auto"
    meter: str = "auto"
    shutdown_limit: float = 20.0
    pictures: str = "auto"
    mm_budget_mb: int = 0
    allow_version: bool = False

    def __post_init__(self) -> None:
        for field, choices in CHOICES.items():
            value = getattr(self, field)
            if value not in choices:
                raise UsageError(
                    f"{_flag(field)} is {value!r}", f"Choose one of: {', '.join(choices)}"
                )
        if not 0 <= self.shutdown_limit < float("inf"):
            raise UsageError(
                f"{_flag('shutdown_limit')} is {self.shutdown_limit:g}", "Give seconds, 0 or more"
            )

    @property
    def stock(self) -> bool:
        """True where SGLang must run without any patch of ours."""
        return self.stock_loop and self.meter != "on"

    @property
    def stock_loop(self) -> bool:
        """True where the loop is SGLang's."""
        return self.loop in ("sglang", "blocking")

    def to_environment(self) -> dict[str, str]:
        """The environment variables from which a child process reads the same settings."""
        return {
            SWITCH: "0" if self.stock else "1",
            **{_variable(field): getattr(self, field) for field in CHOICES},
            _variable("shutdown_limit"): f"{self.shutdown_limit:g}",
            _variable("mm_budget_mb"): str(self.mm_budget_mb),
            _variable("allow_version"): "1" if self.allow_version else "0",
        }

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> PhotonConfig:
        """Settings from the environment alone.

        Raises:
            UsageError: a variable holds something else than its flag would take.
        """
        return cls(
            **{field: environ.get(_variable(field)) or "auto" for field in CHOICES},
            shutdown_limit=_seconds(environ, _variable("shutdown_limit"), cls.shutdown_limit),
            mm_budget_mb=_megabytes(
                _variable("mm_budget_mb"), environ.get(_variable("mm_budget_mb"))
            ),
            allow_version=truth(environ, _variable("allow_version")),
        )

    @classmethod
    def from_command_line(
        cls, argv: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[PhotonConfig, list[str]]:
        """Settings from flags over environment, and the arguments that are SGLang's.

        Raises:
            UsageError: an unknown `--photon-*` flag, or a value that is not one of its choices.
        """
        base = cls.from_environment(environ)
        parser = _Parser(add_help=False, allow_abbrev=False)
        add_flags(parser)
        given, rest = parser.parse_known_args(list(argv))
        for argument in rest:
            if argument.startswith("--photon"):
                raise _unknown_flag(argument.split("=", 1)[0], parser)
        config = cls(
            **{
                field: getattr(given, f"photon_{field}") or getattr(base, field)
                for field in CHOICES
            },
            shutdown_limit=(
                base.shutdown_limit
                if given.photon_shutdown_limit is None
                else given.photon_shutdown_limit
            ),
            mm_budget_mb=base.mm_budget_mb
            if given.photon_mm_budget_mb is None
            else _megabytes(_flag("mm_budget_mb"), given.photon_mm_budget_mb),
            allow_version=given.photon_allow_version or base.allow_version,
        )
        return config, rest


def add_flags(parser: argparse._ActionsContainer) -> None:
    """Add the `--photon-*` flags to a parser or to one of its groups."""
    subjects = {
        "loop": "Scheduler loop",
        "lane": "Where the two-slot loop runs its forwards",
        "prefill_overlap": "Between two prefills in a row",
        "meter": "Step records for `photon profile`",
        "pictures": "Pictures in requests",
    }
    for field, choices in CHOICES.items():
        meanings = "; ".join(f"{name}: {text}" for name, text in choices.items())
        parser.add_argument(
            _flag(field),
            metavar="{" + ",".join(choices) + "}",
            help=f"{subjects[field]}. {meanings}",
        )
    parser.add_argument(
        _flag("shutdown_limit"),
        type=float,
        metavar="SECONDS",
        help="After SIGTERM, running requests may end within so many seconds (default "
        f"{PhotonConfig.shutdown_limit:g}); then they are aborted and the server ends.",
    )
    parser.add_argument(
        _flag("mm_budget_mb"),
        metavar="MB",
        help="Host memory for images that are decoded or wait, all tokenizer workers together. "
        "Beyond it requests with images wait, then get status 503. 0: a quarter of the machine's.",
    )
    parser.add_argument(
        "--photon-allow-version",
        action="store_true",
        help="Start with another SGLang release than the one Photon is built for.",
    )


def truth(environ: Mapping[str, str], variable: str) -> bool:
    """The boolean in an environment variable; unset is False.

    Raises:
        UsageError: the value is neither a yes nor a no.
    """
    value = environ.get(variable, "").strip().lower()
    if value in TRUE:
        return True
    if value in FALSE:
        return False
    raise UsageError(f"{variable} is {value!r}", "Set it to 1 or 0")


def _seconds(environ: Mapping[str, str], variable: str, default: float) -> float:
    value = environ.get(variable)
    try:
        return float(value) if value else default
    except ValueError as error:
        raise UsageError(f"{variable} is {value!r}", "Set it to a number of seconds") from error


def _megabytes(name: str, value: str | None) -> int:
    if not value:
        return 0
    if not value.isascii() or not value.isdigit():
        raise UsageError(f"{name} is {value!r}", "Give a whole number of megabytes")
    return int(value)


class _Parser(argparse.ArgumentParser):
    """argparse that raises our error instead of printing a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "Run with --help for all flags")


def _unknown_flag(flag: str, parser: argparse.ArgumentParser) -> UsageError:
    known = [name for action in parser._actions for name in action.option_strings]
    close = difflib.get_close_matches(flag, known, n=1, cutoff=0.8)
    remedy = f"Did you mean {close[0]}?" if close else f"Photon's flags are: {', '.join(known)}"
    return UsageError(f"There is no flag {flag}", remedy)


def _flag(field: str) -> str:
    return f"--photon-{field.replace('_', '-')}"


def _variable(field: str) -> str:
    return f"{SWITCH}_{field.upper()}"
