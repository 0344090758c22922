"""P6 on a GPU: steady ticks of the real loop and lane wait for their own event and nothing else.

The engine is a small decoder of plain torch operations; tokens stay on the device from step to
step. Its grammar rows get a mask that the host makes after each commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sglang_photon.loop.host import Release
from sglang_photon.loop.tick import PhotonLoop
from sglang_photon.records import StepKind
from sglang_photon.slots.lane import CudaLane
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.state import SLOTS

pytestmark = pytest.mark.gpu

ROWS, HIDDEN, VOCAB = 16, 256, 4096
WARM, STEPS = 20, 200


class Decoder:
    """Weights and the token relay, on the device."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.embed = torch.randn(VOCAB, HIDDEN, generator=generator).to("cuda")
        self.layer = (torch.randn(HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5).to("cuda")
        self.tokens = torch.arange(ROWS, device="cuda")

    def logits(self) -> torch.Tensor:
        """(rows, vocab), float32."""
        hidden: torch.Tensor = self.embed[self.tokens]
        for _ in range(8):
            hidden = torch.tanh(hidden @ self.layer)
        return hidden @ self.embed.T


class Step:
    """One decode step."""

    kind = StepKind.DECODE
    owes_first_token = False
    lockstep = None

    def __init__(self, decoder: Decoder, seen: list[list[int]], masks: torch.Tensor | None) -> None:
        self.riders = tuple(range(ROWS))
        self.samples_later = masks is not None
        self._decoder = decoder
        self._seen = seen
        self._masks = masks
        self._slot: DecodeSlot | None = None

    def stage(self, slot: DecodeSlot) -> None:
        pass

    def forward(self) -> None:
        self._logits = self._decoder.logits()
        if not self.samples_later:
            self.sample()

    def prepare_sampling(self) -> None:
        """The mask depends on the newest token: it bans that one."""
        assert self._masks is not None
        self._masks.zero_()
        self._masks[torch.arange(ROWS), torch.tensor(self._seen[-1])] = float("-inf")

    def sample(self) -> None:
        if self._masks is not None:
            self._logits += self._masks.to("cuda", non_blocking=True)
        # A new tensor: the copy of this one runs beside the next step.
        self._tokens = self._decoder.tokens = torch.argmax(self._logits, dim=-1)

    def read_back(self, slot: DecodeSlot) -> None:
        self._slot = slot
        slot.token_ids[:ROWS].copy_(self._tokens, non_blocking=True)

    def commit(self, *, zombies: int) -> None:
        assert self._slot is not None
        self._seen.append(self._slot.token_ids[:ROWS].tolist())


class Engine:
    """Plans the same step again and again; from the warm ones on, nothing may wait."""

    paused = False

    def __init__(self, *, constrained: bool) -> None:
        self.decoder = Decoder()
        self.seen: list[list[int]] = [list(range(ROWS))]
        self._planned = 0
        self._masks = [
            torch.zeros(ROWS, VOCAB, pin_memory=True) if constrained else None for _ in range(SLOTS)
        ]
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}

    @property
    def exiting(self) -> bool:
        return self._planned == WARM + STEPS

    def receive(self) -> None:
        if self._planned == WARM:
            self.before = driver_memory()
            torch.cuda.set_sync_debug_mode("error")

    def chores(self) -> None:
        pass

    def settle_reason(self) -> None:
        return None

    def expects_prefill(self) -> bool:
        return False

    def plan(self) -> Any:
        masks = self._masks[self._planned % SLOTS]
        self._planned += 1
        return Step(self.decoder, self.seen, masks)

    def rest(self) -> None:
        raise AssertionError("there is always something to run")

    def wait_paused(self) -> None:
        raise AssertionError("never paused")

    def release(self, releases: Sequence[Release]) -> None:
        raise AssertionError("no row ends")


def driver_memory() -> dict[str, int]:
    """What the allocators have taken from the driver, device and pinned."""
    names = ("num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms")
    device = torch.cuda.memory_stats()
    pinned = torch.cuda.host_memory_stats()
    return {
        **{name: int(device.get(name, 0)) for name in names},
        "pinned": int(pinned.get("num_host_alloc", 0)),
    }


@contextmanager
def loop(engine: Engine) -> Iterator[PhotonLoop]:
    lane = CudaLane(
        compute=torch.cuda.Stream(), copies=torch.cuda.Stream(), cuda=torch.cuda, slots=SLOTS
    )
    slots = [DecodeSlot.allocate(index=i, max_rows=ROWS, pinned=True) for i in range(SLOTS)]
    try:
        yield PhotonLoop(host=engine, lane=lane, slots=slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        lane.close()


@pytest.mark.parametrize("constrained", [False, True], ids=["plain", "constrained"])
def test_a_steady_tick_waits_for_its_event_and_takes_no_memory(constrained: bool) -> None:
    engine = Engine(constrained=constrained)
    with loop(engine) as steady:
        steady.run()
        engine.after = driver_memory()
        assert steady.stats.steps == WARM + STEPS
    assert engine.after == engine.before
    assert len(engine.seen) == WARM + STEPS + 1
    if constrained:
        pairs = zip(engine.seen[1:], engine.seen[2:], strict=False)
        assert all(
            one != other for left, right in pairs for one, other in zip(left, right, strict=True)
        )


def test_tokens_are_those_of_a_blocking_decode() -> None:
    engine = Engine(constrained=False)
    with loop(engine) as steady:
        steady.run()
    blocking = Decoder()
    expected = [blocking.tokens.tolist()]
    for _ in range(WARM + STEPS):
        blocking.tokens = torch.argmax(blocking.logits(), dim=-1)
        expected.append(blocking.tokens.tolist())
    assert engine.seen == expected


def test_the_check_notices_a_wait() -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
