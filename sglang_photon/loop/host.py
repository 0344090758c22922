"""What the loop needs from the engine around it: two small protocols, and nothing of SGLang.

The loop decides *when* a step is planned, launched, sampled and committed. *What* that means is the
engine's: `Host` makes plans, `Work` is one plan on its way. Tests put plain objects in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from sglang_photon.records import StepKind
from sglang_photon.slots.slot import DecodeSlot

Release = Callable[[], None]


class Work(Protocol):
    """One planned batch.

    `forward`, `sample` and `read_back` run on the lane, perhaps in another thread, perhaps much
    later: they may read nothing that the host changes after the launch. The rest runs on the host.
    """

    @property
    def kind(self) -> StepKind:
        """Prefill or decode."""

    @property
    def riders(self) -> Sequence[Hashable]:
        """The requests of the batch, compared by identity, each once."""

    @property
    def samples_later(self) -> bool:
        """Whether sampling must wait for the commit of the step before."""

    @property
    def owes_first_token(self) -> bool:
        """Whether a client waits for a first token that this step computes."""

    @property
    def lockstep(self) -> str | None:
        """Why this step must be committed before anything else is planned; None: it need not."""

    def stage(self, slot: DecodeSlot) -> None:
        """Host, at the launch: write what the forward reads into its slot."""

    def forward(self) -> None:
        """Lane: the forward, and the sampling too unless the step samples later."""

    def prepare_sampling(self) -> None:
        """Host: bring up to date what sampling depends on, after the commit of the step before."""

    def sample(self) -> None:
        """Lane: the sampling of a step that samples later."""

    def read_back(self, slot: DecodeSlot) -> None:
        """Lane, copies: bring the results to the host, the tokens into the slot's buffer."""

    def commit(self, *, zombies: int) -> None:
        """Host: append tokens, find ends, stream. `zombies` rows had ended before."""


class Host(Protocol):
    """The engine."""

    @property
    def exiting(self) -> bool:
        """Whether the loop is to end."""

    @property
    def paused(self) -> bool:
        """Whether nothing may be planned for now."""

    def receive(self) -> None:
        """Take in what has arrived and what there is time for; never waits."""

    def chores(self) -> None:
        """Do what may be put off, for as long as the forwards in flight leave time."""

    def settle_reason(self) -> str | None:
        """Why the next plan must see every step committed; None: it need not."""

    def expects_prefill(self) -> bool:
        """Whether the next plan may well be a prefill."""

    def plan(self) -> Work | None:
        """Decide the next step and reserve what it needs; None: nothing can run now."""

    def rest(self) -> None:
        """Nothing is in flight and nothing can run: check, report, wait for messages."""

    def wait_paused(self) -> None:
        """Wait for messages while paused."""

    def release(self, releases: Sequence[Release]) -> None:
        """Run the releases of rows that nothing refers to any more, as one group."""
