"""What one check is asked for; the same in the runner and in the process of each part."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from sglang_photon.errors import UsageError

LOOPS = ("blocking", "sglang", "photon")
BATCHES = (1, 16, 64, 256)
HOST_US = (0.0, 500.0, 2000.0)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a check.

    Attributes:
        rehearse: run everything but the CUDA calls, on the CPU, on tiny shapes.
        batches: rows decoded at once.
        host_us: host work per step in part b, µs.
        steps: decode steps measured in each cell.
        out: the journal.
        again: measure also what the journal holds.
    """

    rehearse: bool
    batches: tuple[int, ...]
    host_us: tuple[float, ...]
    steps: int
    out: Path
    again: bool = False

    @property
    def device(self) -> str:
        """As torch spells it."""
        return "cpu" if self.rehearse else "cuda"

    def arguments(self) -> list[str]:
        """The command line that gives these settings."""
        return [
            *(["--rehearse"] if self.rehearse else []),
            *(["--again"] if self.again else []),
            *("--batch", *map(str, self.batches)),
            *("--host-us", *map(str, self.host_us)),
            *("--steps", str(self.steps), "--out", str(self.out)),
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `Settings`."""
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="on the CPU, tiny shapes: everything but the CUDA calls; its times mean nothing",
    )
    parser.add_argument("--batch", type=int, nargs="+", default=None, help="rows decoded at once")
    parser.add_argument(
        "--host-us", type=float, nargs="+", default=None, help="part b: host work per step, µs"
    )
    parser.add_argument("--steps", type=int, default=None, help="decode steps per cell")
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu_check.jsonl"), help="where figures are appended"
    )


def settings_from(options: argparse.Namespace) -> Settings:
    """Settings from parsed flags.

    Raises:
        UsageError: a number that measures nothing.
    """
    small = options.rehearse
    settings = Settings(
        rehearse=small,
        batches=tuple(options.batch or ((1, 4) if small else BATCHES)),
        host_us=tuple(options.host_us if options.host_us is not None else HOST_US),
        steps=options.steps or (24 if small else 100),
        out=options.out,
        again=options.again,
    )
    if min(settings.batches) < 1 or min(settings.host_us) < 0 or settings.steps < 8:
        raise UsageError(
            "A batch below 1, a negative host time or less than 8 steps",
            "Give numbers that can be measured",
        )
    return settings
