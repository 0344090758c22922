"""Random schedules are the same through two slots, whatever the configuration and the lane.

`--schedules N` plays N schedules for each configuration instead of `SCHEDULES`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.differential.comparing import PHOTON, differences, leaving, play
from tests.differential.features import ARGUMENTS
from tests.differential.pictures import RANDOM_VLM
from tests.differential.rig import MODEL, Event
from tests.differential.schedules import schedule

pytestmark = pytest.mark.timeout(1200)

SCHEDULES = 26
SEEDS = 100_000
"""From one configuration's first seed to the next's."""

CONFIGURATIONS = {
    "default": (),
    "pages": ("--page-size", "16"),
    "chunks": ("--chunked-prefill-size", "16"),
    "mixed": ("--chunked-prefill-size", "16", "--enable-mixed-chunk"),
    "mixed pages": ("--chunked-prefill-size", "16", "--enable-mixed-chunk", "--page-size", "4"),
    "no radix": ("--disable-radix-cache",),
    "tight": ("--max-total-tokens", "160", "--chunked-prefill-size", "16"),
    "tight, no radix": ("--max-total-tokens", "128", "--disable-radix-cache"),
    "few rows": ("--max-running-requests", "2"),
}


WITH_PICTURES = {
    "default": (),
    "chunks": ("--chunked-prefill-size", "16"),
    "mixed": ("--chunked-prefill-size", "16", "--enable-mixed-chunk"),
    "tight": ("--max-total-tokens", "192", "--chunked-prefill-size", "16"),
}
"""With a model that sees pictures."""


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_random_schedules(configuration: str, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("schedules") or SCHEDULES
    base = SEEDS * list(CONFIGURATIONS).index(configuration)
    schedules = [schedule(base + index) for index in range(count)]
    assert_alike(base, schedules, CONFIGURATIONS[configuration], MODEL)


@pytest.mark.parametrize("configuration", WITH_PICTURES)
def test_random_schedules_with_pictures(configuration: str, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("schedules") or SCHEDULES
    base = SEEDS * (len(CONFIGURATIONS) + list(WITH_PICTURES).index(configuration))
    schedules = [schedule(base + index, pictures=True) for index in range(count)]
    assert_alike(base, schedules, WITH_PICTURES[configuration], RANDOM_VLM)


def assert_alike(
    base: int, schedules: Sequence[list[Event]], arguments: Sequence[str], model: str
) -> None:
    """Each schedule is the same in the blocking loop and through one of the lanes in turn."""
    arguments = (*ARGUMENTS, *arguments)
    expected = play("blocking", arguments, schedules, model=model)
    wrong = {}
    for turn, variant in enumerate(PHOTON):
        mine = list(range(turn, len(schedules), len(PHOTON)))
        found = play(variant, arguments, [schedules[index] for index in mine], model=model)
        for index, got in zip(mine, found, strict=True):
            text = differences(expected[index], got, leaving=leaving(schedules[index]))
            if text:
                wrong[base + index, variant] = text
    assert wrong == {}
