"""Random schedules are the same through two slots, whatever the configuration and the lane.

`--schedules N` plays N schedules for each configuration instead of `SCHEDULES`; in the soak, N in
all instead of `SOAK_SCHEDULES`.
"""

from __future__ import annotations

import pytest

from tests.differential.comparing import PHOTON, differences, leaving, play
from tests.differential.features import ARGUMENTS
from tests.differential.pictures import RANDOM_VLM
from tests.differential.rig import MODEL
from tests.differential.schedules import schedule

pytestmark = pytest.mark.timeout(1200)

SCHEDULES = 24
SOAK_SCHEDULES = 3000
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

ALL = [
    *((MODEL, name, arguments) for name, arguments in CONFIGURATIONS.items()),
    *((RANDOM_VLM, name, arguments) for name, arguments in WITH_PICTURES.items()),
]
NAMES = [*CONFIGURATIONS, *(f"pictures, {name}" for name in WITH_PICTURES)]


@pytest.mark.parametrize("number", range(len(ALL)), ids=NAMES)
def test_random_schedules(number: int, request: pytest.FixtureRequest) -> None:
    assert_alike(number, range(request.config.getoption("schedules") or SCHEDULES))


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("number", range(len(ALL)), ids=NAMES)
def test_many_random_schedules(number: int, request: pytest.FixtureRequest) -> None:
    """Others than those of `test_random_schedules`; `--schedules N` is for all configurations."""
    count = (request.config.getoption("schedules") or SOAK_SCHEDULES) // len(ALL)
    assert_alike(number, range(SCHEDULES, SCHEDULES + count))


def assert_alike(number: int, seeds: range) -> None:
    """Each schedule is the same in the blocking loop and through one of the lanes in turn."""
    model, _, arguments = ALL[number]
    arguments = (*ARGUMENTS, *arguments)
    base = SEEDS * number
    schedules = [schedule(base + seed, pictures=model == RANDOM_VLM) for seed in seeds]
    expected = play("blocking", arguments, schedules, model=model)
    wrong = {}
    for turn, variant in enumerate(PHOTON):
        mine = list(range(turn, len(schedules), len(PHOTON)))
        found = play(variant, arguments, [schedules[index] for index in mine], model=model)
        for index, got in zip(mine, found, strict=True):
            text = differences(expected[index], got, leaving=leaving(schedules[index]))
            if text:
                wrong[base + seeds[index], variant] = text
    assert wrong == {}
