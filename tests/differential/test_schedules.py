"""Random schedules are the same through two slots, whatever the configuration and the lane.

`--schedules N` plays N schedules for each configuration instead of `SCHEDULES`.
"""

from __future__ import annotations

import pytest

from tests.differential.comparing import PHOTON, differences, leaving, play
from tests.differential.features import ARGUMENTS
from tests.differential.schedules import schedule

pytestmark = pytest.mark.timeout(1200)

SCHEDULES = 34

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


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_random_schedules(configuration: str, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("schedules") or SCHEDULES
    base = 1000 * list(CONFIGURATIONS).index(configuration)
    schedules = [schedule(base + index) for index in range(count)]
    arguments = (*ARGUMENTS, *CONFIGURATIONS[configuration])
    expected = play("blocking", arguments, schedules)
    wrong = {}
    for turn, variant in enumerate(PHOTON):
        mine = list(range(turn, count, len(PHOTON)))
        found = play(variant, arguments, [schedules[index] for index in mine])
        for index, got in zip(mine, found, strict=True):
            text = differences(expected[index], got, leaving=leaving(schedules[index]))
            if text:
                wrong[base + index, variant] = text
    assert wrong == {}
