"""What a scheduler's thread can be doing: the phases of a tick, numbered for the step records.

Plain integers, not an enum: the loop changes the phase several times in every step.
"""

from __future__ import annotations

from typing import Final

RECEIVE: Final = 0
PLAN: Final = 1
LAUNCH: Final = 2
CHORES: Final = 3
COMMIT: Final = 4
SAMPLE: Final = 5
WAIT: Final = 6
IDLE: Final = 7

NAMES: Final = (
    "receive",
    "plan",
    "launch",
    "chores",
    "commit",
    "sample",
    "wait for device",
    "idle",
)
"""As people read them. `wait for device` is also the forward itself, where the device is the
scheduler's own thread; `idle` is having nothing to run."""

HOST: Final = (RECEIVE, PLAN, LAUNCH, CHORES, COMMIT, SAMPLE)
"""The phases that are work of the host."""
