"""What the tokenizer process does with pixels: the same hash, beside the loop, nothing left."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.managers.mm_utils import ShmPointerMMData
from sglang.srt.managers.schedule_batch import (
    Modality,
    MultimodalDataItem,
    MultimodalProcessorOutput,
)

from sglang_photon.upstream import tokenizing


def item(feature: Any, **fields: Any) -> MultimodalDataItem:
    return MultimodalDataItem(modality=Modality.IMAGE, feature=feature, **fields)


def hashed_by_scheduler(feature: Any) -> MultimodalDataItem:
    made = item(feature)
    made.set_pad_value()
    return made


@pytest.fixture
def precompute(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(tokenizing.HASH_IN_TOKENIZER, "1")
    monkeypatch.setattr(tokenizing, "PRECOMPUTE_HASHES", lambda processor, items: None)

    def run(items: list[MultimodalDataItem], *, beside: bool = True) -> None:
        executor = object() if beside else None
        tokenizing._precompute_hashes(SimpleNamespace(mm_processor_executor=executor), items)

    return run


@pytest.mark.parametrize(
    "feature",
    [
        torch.arange(12, dtype=torch.float32).reshape(3, 4),
        torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T,
        [torch.ones(3), torch.zeros(2, 2)],
    ],
    ids=["float32", "strided", "list"],
)
def test_the_hash_and_the_pad_values_are_the_scheduler_s(precompute: Any, feature: Any) -> None:
    ours, theirs = item(feature), hashed_by_scheduler(feature)
    precompute([ours])
    assert ours.hash == theirs.hash
    assert ours.pad_value is None, "set where SGLang sets it"
    ours.set_pad_value()
    assert ours.pad_values == theirs.pad_values


def test_on_the_event_loop_only_what_is_on_a_device_is_hashed(precompute: Any) -> None:
    ours = item(torch.ones(3))
    precompute([ours], beside=False)
    assert ours.hash is None


def test_what_has_a_hash_or_is_no_tensor_is_left_alone(precompute: Any) -> None:
    given, array = item(torch.ones(3), hash=7), item(np.ones(3))
    precompute([given, array])
    assert given.hash == 7
    assert array.hash is None


class Manager:
    """A tokenizer manager that sends, or does not."""

    def __init__(self) -> None:
        self.rid_to_state = {"r": SimpleNamespace(dispatched=False)}


def request() -> Any:
    inputs = MultimodalProcessorOutput(mm_items=[item(torch.ones(1000))])
    return SimpleNamespace(rid="r", mm_inputs=inputs)


def segments(names: list[str]) -> list[str]:
    return [name for name in names if (Path("/dev/shm") / name).exists()]


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's wrapping and sending, with doors."""
    doors = SimpleNamespace(
        names=[], threads=[], entered=threading.Event(), leave=threading.Event(), error=None
    )
    doors.leave.set()

    def wrap(one: Any) -> None:
        doors.threads.append(threading.current_thread())
        doors.entered.set()
        doors.leave.wait(20)
        for made in one.mm_inputs.mm_items:
            made.feature = ShmPointerMMData(made.feature)
            doors.names.append(made.feature.shm_name)

    def discard(one: Any) -> None:
        for made in one.mm_inputs.mm_items:
            made.feature.close_and_unlink()

    async def send(manager: Any, one: Any) -> None:
        if doors.error is not None:
            raise doors.error
        manager.rid_to_state[one.rid].dispatched = True

    monkeypatch.setattr(tokenizing, "wrap_shm_features", wrap)
    monkeypatch.setattr(tokenizing, "discard_shm_features", discard)
    monkeypatch.setattr(tokenizing, "SEND_ONE_REQUEST", send)
    monkeypatch.setattr(tokenizing, "get_mm", lambda: SimpleNamespace(mm_feature_transport="cpu"))
    yield doors
    for name in segments(doors.names):
        (Path("/dev/shm") / name).unlink()


def test_pixels_are_copied_in_a_thread(sending: Any) -> None:
    asyncio.run(tokenizing._send_one_request(Manager(), request()))
    assert sending.threads != [threading.main_thread()]
    assert len(segments(sending.names)) == 1, "the scheduler's now"


def test_what_was_not_sent_leaves_no_segment(sending: Any) -> None:
    sending.error = RuntimeError("no scheduler")
    with pytest.raises(RuntimeError, match="no scheduler"):
        asyncio.run(tokenizing._send_one_request(Manager(), request()))
    assert len(sending.names) == 1
    assert segments(sending.names) == []


def test_a_client_that_leaves_during_the_copy_leaves_no_segment(sending: Any) -> None:
    async def test() -> None:
        sending.leave.clear()
        task = asyncio.create_task(tokenizing._send_one_request(Manager(), request()))
        await asyncio.to_thread(sending.entered.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "the thread still writes"
        sending.leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())
    assert len(sending.names) == 1
    assert segments(sending.names) == []


def test_text_is_sent_at_once(sending: Any) -> None:
    one = SimpleNamespace(rid="r", mm_inputs=None)
    asyncio.run(tokenizing._send_one_request(Manager(), one))
    assert sending.threads == []
