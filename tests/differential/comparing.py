"""Run the same schedules through several loops, and say where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.differential.rig import MODEL, Ask, Event, Seen, rig

PHOTON = ("photon/inline", "photon/thread", "photon/sim", "photon/instant")
Played = list[dict[str, Seen]]


def play(
    variant: str,
    arguments: Sequence[str],
    schedules: Sequence[Sequence[Event]],
    *,
    model: str = MODEL,
) -> Played:
    """Play schedules through one loop.

    Args:
        variant: `blocking`, `sglang`, or `photon/` and a lane.
        arguments: of the server.
        schedules: played one after another, each from an empty cache.
        model: a demo model's name.
    """
    loop, _, lane = variant.partition("/")
    with rig(*arguments, loop=loop, lane=lane or "inline", model=model) as bench:
        return [bench.play(schedule) for schedule in schedules]


def differences(
    expected: dict[str, Seen], found: dict[str, Seen], *, leaving: frozenset[str] = frozenset()
) -> list[str]:
    """One sentence per client that sees something else.

    Args:
        expected: what the blocking loop sends.
        found: what another loop sends.
        leaving: clients that go away at some moment: their text is cut, elsewhere perhaps.
    """
    # A client that leaves while it waits is answered by another message, if at all.
    one_sided = (expected.keys() ^ found.keys()) - leaving
    if one_sided:
        return [f"clients {sorted(one_sided)} are answered by one loop only"]
    return [
        f"{rid}: {_first_difference(expected[rid], found[rid])}"
        for rid in expected.keys() & found.keys()
        if not _agree(expected[rid], found[rid], cut=rid in leaving)
    ]


def leaving(schedule: Sequence[Event]) -> frozenset[str]:
    """Clients of a schedule that may be cut off."""
    return frozenset(
        event.rid for event in schedule if not isinstance(event, Ask) and hasattr(event, "rid")
    )


def _agree(expected: Seen, found: Seen, *, cut: bool) -> bool:
    if not cut:
        return expected.chunks == found.chunks
    shorter, longer = sorted((expected.tokens, found.tokens), key=len)
    # A client that leaves while its grammar compiles gets one token of an empty prompt.
    return len(shorter) <= 1 or longer[: len(shorter)] == shorter


def _first_difference(expected: Seen, found: Seen) -> str:
    if expected.tokens != found.tokens:
        return f"tokens {expected.tokens} became {found.tokens}"
    for index, (one, other) in enumerate(zip(expected.chunks, found.chunks, strict=False)):
        fields: list[Any] = [name for name in one if one[name] != other.get(name)]
        if fields:
            name = fields[0]
            return f"chunk {index}: {name} {one[name]!r} became {other.get(name)!r}"
    return f"{len(expected.chunks)} chunks became {len(found.chunks)}"
