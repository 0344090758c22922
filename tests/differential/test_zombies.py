"""Zombies: computed, never shown, never counted; and rows whose end is known are no zombies."""

from __future__ import annotations

from typing import Any

from tests.differential.features import EOS_LIKE
from tests.differential.rig import Ask, rig


def asks(**params: Any) -> list[Ask]:
    return [
        Ask(rid=str(n), at=n % 3, prompt=(40 + n, 41), params={"max_new_tokens": 40, **params})
        for n in range(6)
    ]


def test_zombies_are_not_counted() -> None:
    """Tokens in the statistics are tokens that clients have seen."""
    with rig(loop="photon", lane="sim") as bench:
        counted = []
        report = bench.scheduler.metrics_reporter.report_decode_stats

        def counting(*args: Any, num_generated_tokens: int, **rest: Any) -> None:
            report(*args, num_generated_tokens=num_generated_tokens, **rest)
            counted.append(num_generated_tokens)

        bench.scheduler.metrics_reporter.report_decode_stats = counting
        found = bench.play(asks(stop_token_ids=EOS_LIKE))
        assert bench.pipeline.zombie_rows > 0
    shown = sum(len(one.tokens) - 1 for one in found.values())  # the first is the prefill's
    assert sum(counted) == shown


def test_rows_whose_length_is_known_are_not_launched_again() -> None:
    with rig(loop="photon", lane="sim") as bench:
        bench.play(asks(ignore_eos=True))
        assert bench.pipeline.zombie_rows == 0


def test_the_tax_is_one_row_for_each_unforeseen_end() -> None:
    with rig(loop="photon", lane="sim") as bench:
        found = bench.play(asks(stop_token_ids=EOS_LIKE))
        assert bench.pipeline.zombie_rows == len(found)
        shown = sum(len(one.tokens) for one in found.values())
        assert bench.pipeline.launched_rows == shown + len(found)
