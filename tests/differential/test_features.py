"""Every feature, and every pair of features in one batch, is the same through two slots (P7)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.differential.comparing import PHOTON, Played, differences, play
from tests.differential.features import ARGUMENTS, FEATURES, combined
from tests.differential.pictures import RANDOM_VLM
from tests.differential.rig import Ask, Event

pytestmark = pytest.mark.timeout(300)

CONFIGURATIONS = {
    "default": (),
    "pages": ("--page-size", "16"),
    "chunks": ("--chunked-prefill-size", "8"),
    "mixed": ("--chunked-prefill-size", "8", "--enable-mixed-chunk"),
    "no_radix": ("--disable-radix-cache",),
    "tight": ("--max-total-tokens", "96"),
    "few_rows": ("--max-running-requests", "3"),
}


def ask(rid: str, at: int, *names: str) -> Ask:
    feature = combined(*names)
    length = 3 + (at * 7) % 11
    return Ask(
        rid=rid,
        at=at,
        prompt=tuple(20 + (at * 31 + k * 17) % 900 for k in range(length)),
        params={"max_new_tokens": 6 + (at * 5) % 13, **feature.params},
        fields=feature.fields,
    )


def singles() -> list[list[Event]]:
    """For each feature: it joins plain rows, they join it, and it runs beside itself."""
    return [
        [
            ask("plain before", 0),
            ask("first", 1, name),
            ask("second", 3, name),
            ask("plain after", 4),
            ask("alone at the end", 9, name),
        ]
        for name in FEATURES
    ]


def pairs() -> list[list[Event]]:
    """For each pair: one row of each, one with both, one with none."""
    return [
        [ask("a", 0, one), ask("b", 1, other), ask("ab", 2, one, other), ask("plain", 3)]
        for one, other in itertools.combinations([name for name in FEATURES if name != "plain"], 2)
    ]


@pytest.fixture(scope="module")
def oracle() -> dict[str, Played]:
    return {
        name: play("blocking", (*ARGUMENTS, *arguments), singles())
        for name, arguments in CONFIGURATIONS.items()
    }


@pytest.mark.parametrize(
    ("configuration", "variant"),
    [("default", variant) for variant in PHOTON]
    + [(name, "photon/thread") for name in CONFIGURATIONS if name != "default"],
)
def test_every_feature(configuration: str, variant: str, oracle: dict[str, Played]) -> None:
    arguments = (*ARGUMENTS, *CONFIGURATIONS[configuration])
    found = play(variant, arguments, singles())
    wrong = {
        name: text
        for name, expected, got in zip(FEATURES, oracle[configuration], found, strict=True)
        if (text := differences(expected, got))
    }
    assert wrong == {}


def test_every_pair_of_features() -> None:
    expected = play("blocking", ARGUMENTS, pairs())
    found = play("photon/sim", ARGUMENTS, pairs())
    names = itertools.combinations([name for name in FEATURES if name != "plain"], 2)
    wrong = {
        pair: text
        for pair, one, other in zip(names, expected, found, strict=True)
        if (text := differences(one, other))
    }
    assert wrong == {}


def test_each_feature_does_something() -> None:
    """The comparison would be worth nothing if the features were ignored by all loops alike."""
    answers = dict(zip(FEATURES, play("blocking", ARGUMENTS, singles()), strict=True))
    plain = answers["plain"]["first"].chunks
    same = [name for name, seen in answers.items() if seen["first"].chunks == plain]
    assert same == ["plain"]


def with_pictures() -> list[list[Event]]:
    """For each feature: with a picture, beside pictures, and both shown again from the cache."""
    return [
        [
            replace(ask("shown", 0, name), pictures=(0, 1)),
            replace(ask("plain, shown", 1), pictures=(2,)),
            ask("beside", 2, name),
            ask("plain beside", 3),
            replace(ask("shown again", 9, name), pictures=(0, 1)),
            replace(ask("another", 10, name), pictures=(0, 3)),
        ]
        for name in FEATURES
    ]


STALE_IN_SGLANG = {"frequency", "presence", "repetition", "processor"}
"""What SGLang's overlap loop decides without the newest token (docs/INVARIANTS.md)."""


@pytest.mark.parametrize(
    ("variant", "arguments"),
    [("photon/thread", ("--chunked-prefill-size", "16")), ("photon/instant", ()), ("sglang", ())],
    ids=["thread, chunks", "instant", "sglang"],
)
def test_every_feature_with_pictures(variant: str, arguments: tuple[str, ...]) -> None:
    arguments = (*ARGUMENTS, *arguments)
    expected = play("blocking", arguments, with_pictures(), model=RANDOM_VLM)
    found = play(variant, arguments, with_pictures(), model=RANDOM_VLM)
    wrong = {
        name: text
        for name, one, other in zip(FEATURES, expected, found, strict=True)
        if (text := differences(one, other))
    }
    assert wrong.keys() - (STALE_IN_SGLANG if variant == "sglang" else set()) == set(), wrong
    seen = expected[0]
    assert seen["shown"].tokens != seen["another"].tokens, "pictures are looked at"
