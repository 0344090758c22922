"""One type per stage of a step, so that a signature says where in the pipeline it stands.

    StepPlan -> launch -> LaunchHandle -> begin_commit -> PendingCommit -> finish_commit

All are frozen: a stage hands its record on and keeps no way to change it. Rows are named by the
integers that `Pipeline.open_row` gave out; a row is one stay of a request in the pipeline, so a
request that is retracted and comes back has a new row, and an id reused by a client is another row.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class StepKind(enum.Enum):
    """What a step computes."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """A step that has been decided and not launched.

    Attributes:
        kind: prefill (also with decode rows mixed in) or decode.
        rows: every row that the forward reads or writes.
        samples_later: some row's next token depends on what the commit of the step before
            decides (a grammar, a penalty, a processor that sees the text), so the forward is
            launched alone and sampled after that commit.
    """

    kind: StepKind
    rows: frozenset[int]
    samples_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchHandle:
    """A step in flight.

    Attributes:
        step: launch number, counted from 0 without gaps.
        slot: the slot whose buffers the step uses.
        plan: what was launched.
    """

    step: int
    slot: int
    plan: StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """The oldest step, its results arrived, being read by the host.

    Attributes:
        handle: the step.
        zombies: its rows that had ended before it was committed: computed, never shown.
    """

    handle: LaunchHandle
    zombies: frozenset[int]
