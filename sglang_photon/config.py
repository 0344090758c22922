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
TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class PhotonConfig:
    """Settings of one server.

    Attributes:
        loop: which scheduler loop runs, a key of `LOOPS`.
        allow_version: start with another SGLang release than the one this package is built for.
    """

    loop: str = "auto"
    allow_version: bool = False

    def __post_init__(self) -> None:
        if self.loop not in LOOPS:
            raise UsageError(
                f"--photon-loop is {self.loop!r}", f"Choose one of: {', '.join(LOOPS)}"
            )
        if self.loop == "photon":
            raise UsageError(
                "--photon-loop photon is not in this release",
                "Use --photon-loop auto, which runs SGLang's overlap loop in Photon's process",
            )

    @property
    def stock(self) -> bool:
        """True where SGLang must run without any patch of ours."""
        return self.loop in ("sglang", "blocking")

    def to_environment(self) -> dict[str, str]:
        """The environment variables from which a child process reads the same settings."""
        return {
            SWITCH: "0" if self.stock else "1",
            _variable("loop"): self.loop,
            _variable("allow_version"): "1" if self.allow_version else "0",
        }

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> PhotonConfig:
        """Settings from the environment alone.

        Raises:
            UsageError: a variable holds something else than its flag would take.
        """
        return cls(
            loop=environ.get(_variable("loop")) or "auto",
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
            loop=given.photon_loop or base.loop,
            allow_version=given.photon_allow_version or base.allow_version,
        )
        return config, rest


def add_flags(parser: argparse._ActionsContainer) -> None:
    """Add the `--photon-*` flags to a parser or to one of its groups."""
    parser.add_argument(
        "--photon-loop",
        metavar="{" + ",".join(LOOPS) + "}",
        help="Scheduler loop. " + "; ".join(f"{name}: {text}" for name, text in LOOPS.items()),
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


class _Parser(argparse.ArgumentParser):
    """argparse that raises our error instead of printing a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "Run with --help for all flags")


def _unknown_flag(flag: str, parser: argparse.ArgumentParser) -> UsageError:
    known = [name for action in parser._actions for name in action.option_strings]
    close = difflib.get_close_matches(flag, known, n=1, cutoff=0.8)
    remedy = f"Did you mean {close[0]}?" if close else f"Photon's flags are: {', '.join(known)}"
    return UsageError(f"There is no flag {flag}", remedy)


def _variable(field: str) -> str:
    return f"{SWITCH}_{field.upper()}"
