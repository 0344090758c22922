"""Rows beside what SGLang itself would have made of the same requests."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.upstream import row_forward
from sglang_photon.upstream.row_forward import CohortForward
from sglang_photon.upstream.row_stream import PackedTokens, RowStream
from tests.differential.features import FEATURES
from tests.differential.rig import Ask, rig

ARGUMENTS = ("--max-running-requests", "8")


def asks(*names: str) -> list[Ask]:
    return [
        Ask(
            rid=f"{number}-{name}",
            at=number,
            prompt=(40 + number, 41, 42),
            params={"max_new_tokens": 12, "ignore_eos": True, **FEATURES[name].params},
            fields=FEATURES[name].fields,
        )
        for number, name in enumerate(names)
    ]


def test_a_packed_chunk_is_the_message_that_sglang_would_have_sent() -> None:
    """Field by field, also those that say when something happened."""
    with rig(*ARGUMENTS, loop="sglang") as bench:
        theirs = _chunks(bench, asks("plain", "plain"))
    with pytest.MonkeyPatch.context() as patch, rig(*ARGUMENTS, loop="photon") as bench:
        packed = 0
        send = RowStream.send

        def counting(self: RowStream, message: PackedTokens) -> None:
            nonlocal packed
            packed += 1
            assert pickle.loads(pickle.dumps(message)) == message.received()
            send(self, message)

        patch.setattr(RowStream, "send", counting)
        ours = _chunks(bench, asks("plain", "plain"))
    assert packed >= 10
    assert ours.keys() == theirs.keys()
    for rid, chunks in theirs.items():
        assert ours[rid] == chunks


def _chunks(bench: Any, events: list[Ask]) -> dict[str, list[dict[str, Any]]]:
    """Every field of every message, by request."""
    before = len(bench.scheduler.outbox.to_detokenizer)
    bench.play(events)
    found: dict[str, list[dict[str, Any]]] = {}
    for message in bench.scheduler.outbox.to_detokenizer[before:]:
        for index, rid in enumerate(message.rids):
            fields = {}
            for name in message.__struct_fields__:
                value = getattr(message, name)
                if isinstance(value, list) and len(value) == len(message.rids):
                    value = value[index]
                fields[name] = pickle.dumps(value) if name == "time_stats" else value
            found.setdefault(rid, []).append(fields)
    return found


def test_the_loop_gives_the_streamer_its_sender_back() -> None:
    with rig(*ARGUMENTS, loop="photon") as bench:
        streamer = bench.scheduler.output_streamer
        before = streamer.send_to_detokenizer
        bench.play(asks("plain"))
        assert streamer.send_to_detokenizer is before


@pytest.mark.parametrize(
    "names", [("plain", "plain"), ("regex", "plain"), ("logprobs", "bias"), ("hidden", "plain")]
)
def test_fields_that_are_put_together_are_those_of_a_batch_that_sglang_builds(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    put_together = CohortForward._fields

    def comparing(self: CohortForward, slot: DecodeSlot) -> dict[str, Any] | None:
        nonlocal compared
        fields = put_together(self, slot)
        built = self._build(slot).__dict__
        assert fields is not None
        assert fields.keys() == built.keys()
        wrong = [name for name in built if not _alike(fields[name], built[name])]
        assert wrong == []
        compared += 1
        return fields

    monkeypatch.setattr(row_forward.CohortForward, "_fields", comparing)
    with rig(*ARGUMENTS, loop="photon") as bench:
        bench.play(asks(*names))
    assert compared >= 2


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if type(one).__module__.startswith("sglang") and hasattr(one, "__dict__"):
        # A plan of KV locations: over the same memory.
        pairs = zip(vars(one).values(), vars(other).values(), strict=True)
        return one is other or all(
            _alike(a, b) for a, b in pairs if isinstance(a, torch.Tensor | int)
        )
    return bool(one == other)


def test_more_stop_ids_than_are_kept_are_watched_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sglang_photon.rows.ends.FORGET_AT", 8)
    events = [
        Ask(
            rid=str(number),
            at=2 * number,
            prompt=(40 + number,),
            params={"max_new_tokens": 20, "stop_token_ids": list(range(number, 1024, 7))},
        )
        for number in range(6)
    ]
    with rig(*ARGUMENTS, loop="blocking") as bench:
        expected = bench.play(events)
    with rig(*ARGUMENTS, loop="photon") as bench:
        found = bench.play(events)
    assert found == expected
