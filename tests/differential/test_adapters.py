"""Adapters that are exchanged while steps of another one are in flight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput, UnloadLoRAAdapterReqInput

from tests.adapters import forcing
from tests.differential.rig import MODEL, Ask, Control, Event, Rig, rig

FIRST, SECOND = 77, 88
LENGTH = 30
ONE_SLOT = ("--lora-backend", "torch_native", "--max-loras-per-batch", "1")

pytestmark = pytest.mark.timeout(120)


def ask(rid: str, at: int, lora: str, **params: Any) -> Ask:
    params = {"max_new_tokens": LENGTH, "ignore_eos": True, **params}
    return Ask(rid=rid, at=at, prompt=(40 + at, 41), params=params, fields={"lora_id": lora})


def identity(bench: Rig, name: str) -> str:
    manager = bench.scheduler.tp_worker.model_runner.lora_manager
    found: dict[str, str] = {ref.lora_name: ref.lora_id for ref in manager.lora_refs.values()}
    return found[name]


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_ov_28_an_adapter_takes_the_slot_of_another(tmp_path: Path, lane: str) -> None:
    """One slot: B's weights go where A's were while A's last step is in flight as a zombie."""
    adapters = [
        f"{name}={forcing(tmp_path / name, token, model=MODEL)}"
        for name, token in (("a", FIRST), ("b", SECOND))
    ]
    with rig("--lora-paths", *adapters, *ONE_SLOT, loop="photon", lane=lane, hashed=False) as bench:
        a, b = identity(bench, "a"), identity(bench, "b")
        # An end that no step knows in advance: the row rides once more.
        end = bench.scheduler.tokenizer.decode([FIRST] * LENGTH)
        asks: list[Event] = [
            ask("a", 0, a, stop=[end], max_new_tokens=2 * LENGTH),
            ask("b", 3, b),
            ask("a again", 4, a),
        ]
        found = bench.play(asks)
        assert bench.pipeline.zombie_rows == 1
    assert found["a"].tokens == [FIRST] * LENGTH
    assert found["b"].tokens == [SECOND] * LENGTH
    assert found["a again"].tokens == [FIRST] * LENGTH


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_ov_28_an_adapter_is_loaded_and_unloaded_beside_another(tmp_path: Path, lane: str) -> None:
    first = f"a={forcing(tmp_path / 'a', FIRST, model=MODEL)}"
    second = str(forcing(tmp_path / "b", SECOND, model=MODEL))
    arguments = ("--lora-paths", first, "--lora-backend", "torch_native")
    load = Control(
        at=6,
        make=lambda: LoadLoRAAdapterReqInput(lora_name="b", lora_path=second, lora_id="id-b"),
    )
    unload = Control(at=60, make=lambda: UnloadLoRAAdapterReqInput(lora_name="b", lora_id="id-b"))
    with rig(*arguments, loop="photon", lane=lane, hashed=False) as bench:
        a = identity(bench, "a")
        events: list[Event] = [ask("a", 0, a, max_new_tokens=90), load, ask("b", 8, "id-b"), unload]
        found = bench.play(events)
    assert found["a"].tokens == [FIRST] * 90
    assert found["b"].tokens == [SECOND] * LENGTH
