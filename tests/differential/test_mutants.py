"""Every mutant is noticed by a test, and not by luck: the untouched loop passes the same checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.differential import test_public_reports as reports
from tests.differential import test_zombies as zombies
from tests.differential.comparing import Played, differences, play
from tests.differential.features import ARGUMENTS, EOS_LIKE, FEATURES
from tests.differential.mutants import MUTANTS
from tests.differential.rig import Ask, Event
from tests.unit.slots import test_state as state

pytestmark = pytest.mark.timeout(240)


def everything() -> list[Event]:
    """Joins, unforeseen ends, grammars, penalties and plain rows, close together."""
    late: Event = Ask(rid="late", at=9, prompt=(77,), params={"stop_token_ids": EOS_LIKE[::2]})
    names = ["plain", "regex", "frequency", "stop_ids", "schema", "processor", "stop_ids", "plain"]
    return [late] + [
        Ask(
            rid=str(number),
            at=number,
            prompt=(40 + number, 41, 42),
            params={"max_new_tokens": 14, **FEATURES[name].params},
            fields=FEATURES[name].fields,
        )
        for number, name in enumerate(names)
    ]


@pytest.fixture(scope="module")
def expected() -> Played:
    return play("blocking", ARGUMENTS, [everything()])


def compare(variant: str, expected: Played) -> None:
    found = play(variant, ARGUMENTS, [everything()])
    assert differences(expected[0], found[0]) == []


def detectors(expected: Played) -> Sequence[Callable[[], None]]:
    """The checks that a mutant has to pass, cheapest first."""
    return (
        state.test_a_popped_slot_is_not_free_before_its_commit_is_finished,
        lambda: compare("photon/instant", expected),
        zombies.test_zombies_are_not_counted,
        _ov_07,
    )


def _ov_07() -> None:
    with pytest.MonkeyPatch.context() as patch:
        reports.test_ov_07_a_row_is_given_away_only_when_no_step_refers_to_it(patch)


def test_the_untouched_loop_passes(expected: Played) -> None:
    for detector in detectors(expected):
        detector()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name: str, expected: Played) -> None:
    with MUTANTS[name]():
        for detector in detectors(expected):
            try:
                detector()
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - any failure is the point
                return
    pytest.fail(f"the mutant {name} passes every check")
