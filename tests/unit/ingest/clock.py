"""Time that passes when a test says so."""

from __future__ import annotations


class Clock:
    """Seconds since the test began."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
