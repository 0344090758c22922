"""Real layers in float32: tokens are equal, logprobs within 1e-4 (batches move the last bits)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adapters import adapter
from tests.differential.features import ARGUMENTS
from tests.differential.rig import MODEL, Ask, Event, Seen, rig
from tests.differential.test_features import singles

pytestmark = pytest.mark.timeout(240)


def assert_close(expected: dict[str, Seen], found: dict[str, Seen]) -> None:
    assert expected.keys() == found.keys()
    for rid, one in expected.items():
        other = found[rid]
        assert one.tokens == other.tokens, rid
        assert one.finish == other.finish
        for left, right in zip(one.chunks, other.chunks, strict=True):
            assert left.keys() == right.keys()
            for name, value in left.items():
                if "logprobs_val" in name or name == "output_hidden_states":
                    assert numbers(right[name]) == pytest.approx(numbers(value), abs=1e-4)
                else:
                    assert right[name] == value, (rid, name)


def numbers(value: Any) -> list[float]:
    """All numbers of nested lists, in order."""
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in numbers(part)]
    return [] if value is None else [float(value)]


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_a_text_model(lane: str) -> None:
    with rig(*ARGUMENTS, loop="blocking", hashed=False) as bench:
        expected = [bench.play(schedule) for schedule in singles()]
    with rig(*ARGUMENTS, loop="photon", lane=lane, hashed=False) as bench:
        for one, schedule in zip(expected, singles(), strict=True):
            assert_close(one, bench.play(schedule))


def shown() -> list[Event]:
    """Pictures that come while others are answered; two look at the same ones."""
    return [
        Ask(
            rid=str(number),
            at=2 * number,
            prompt=(40 + number, 41, 42),
            params={"max_new_tokens": 10 + number},
            fields={"return_logprob": number % 2 == 0},
            pictures=(number % 3, number % 2)[: 1 + number % 2],
        )
        for number in range(6)
    ]


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_a_picture_model(lane: str) -> None:
    with rig(loop="blocking", hashed=False, model="demo") as bench:
        expected = bench.play(shown())
    with rig(loop="photon", lane=lane, hashed=False, model="demo") as bench:
        assert_close(expected, bench.play(shown()))


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_ov_27_adapters_and_the_base_model_share_a_server(tmp_path: Path, lane: str) -> None:
    arguments = (
        "--lora-paths",
        *(
            f"{name}={adapter(tmp_path / name, seed, model=MODEL)}"
            for seed, name in enumerate(("a", "b", "c"))
        ),
        *("--lora-backend", "torch_native", "--max-loras-per-batch", "2"),
    )

    def asks(scheduler: Any) -> list[Ask]:
        manager = scheduler.tp_worker.model_runner.lora_manager
        loaded = {
            reference.lora_name: reference.lora_id for reference in manager.lora_refs.values()
        }
        references = [None, loaded["a"], loaded["b"], loaded["c"]]
        return [
            Ask(
                rid=f"{turn}-{index}",
                at=2 * turn + index % 2,
                prompt=(30 + index, 31, 32),
                params={"max_new_tokens": 8 + index},
                fields={"lora_id": reference},
            )
            for turn in range(4)
            for index, reference in enumerate(references)
        ]

    with rig(*arguments, loop="blocking", hashed=False) as bench:
        expected = bench.play(asks(bench.scheduler))
    with rig(*arguments, loop="photon", lane=lane, hashed=False) as bench:
        assert_close(expected, bench.play(asks(bench.scheduler)))
    first = {tuple(expected[f"0-{index}"].tokens[:8]) for index in range(4)}
    assert len(first) == 4, "the adapters change the answers"
