"""A scheduler with one loop and one lane, fed with a schedule, and what its clients would see."""

from __future__ import annotations

import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.managers.io_struct import AbortReq, TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.utils.common import DynamicGradMode

from sglang_photon.reference.models import names
from sglang_photon.slots.lane import InlineLane, Lane, ThreadLane
from sglang_photon.slots.sim import SimLane, VirtualClock
from sglang_photon.upstream.hash_body import HashBody
from sglang_photon.upstream.in_process import in_process_scheduler, run
from sglang_photon.upstream.requests import tokenized
from tests.differential.pictures import prepared

MODEL = "demo:random:qwen2,hidden=64,layers=1,vocab=1024"
VOCAB = 1024
POOL = 4096
LAST_TICK = 4000
COMPILED_S = 30.0
"""More than any grammar of the tests takes."""

LANES: dict[str, Callable[[], Lane]] = {
    "inline": InlineLane,
    "thread": lambda: ThreadLane(enter=DynamicGradMode),
    "sim": lambda: SimLane(step_time=lambda kind: 1.0, clock=VirtualClock()),
    # Done as soon as anybody looks: both steps' results are there before the first is read.
    "instant": lambda: SimLane(step_time=lambda kind: 0.0, clock=VirtualClock()),
}

TIMING = {
    "cached_tokens",
    "cached_tokens_details",
    "dp_ranks",
    "http_worker_ipcs",
    "retraction_counts",
    "rids",
    "time_stats",
    "weight_versions",
}
"""Fields of a message that tell when something happened, not what came out."""

ALWAYS = {"decode_ids", "finished_reasons"}
"""Fields that are looked at even where they are empty."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, and the tick in which it arrives; its pictures stand before its prompt."""

    rid: str
    prompt: tuple[int, ...]
    at: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    pictures: tuple[int, ...] = ()

    def message(self, scheduler: Any) -> TokenizedGenerateReqInput:
        """As the tokenizer process would send it."""
        params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 8, **self.params})
        params.normalize(scheduler.tokenizer)
        params.verify(scheduler.model_config.vocab_size)
        shown = prepared(scheduler, self.pictures, self.prompt) if self.pictures else None
        return tokenized(
            rid=self.rid,
            ids=self.prompt if shown is None else shown.input_ids,
            params=params,
            mm_inputs=shown,
            **self.fields,
        )


@dataclass(frozen=True, kw_only=True)
class Abort:
    """A client that goes away."""

    rid: str
    at: int

    def message(self, scheduler: Any) -> AbortReq:
        return AbortReq(rid=self.rid)


@dataclass(frozen=True, kw_only=True)
class Control:
    """Any other message, made when it is due."""

    make: Callable[[], Any]
    at: int

    def message(self, scheduler: Any) -> Any:
        return self.make()


Event = Ask | Abort | Control


class Script:
    """A source that sends each event in its tick.

    Args:
        events: in any order.
        follow_up: called once the rest has been sent, in every tick: more events, to be sent now.
        patient: a tick begins when every grammar is compiled, so that a schedule is the same one
            however fast the compiler is. Otherwise ticks go on, as many as it takes.
    """

    def __init__(
        self,
        events: Sequence[Event],
        follow_up: Callable[[Any], Sequence[Event] | None] | None = None,
        *,
        patient: bool = True,
    ) -> None:
        self._patient = patient
        self._events = sorted(events, key=lambda event: event.at)
        self._follow_up = follow_up
        self._tick = 0

    def poll(self, scheduler: Any) -> list[Any]:
        due = [event for event in self._events if event.at <= self._tick]
        self._events = self._events[len(due) :]
        self._tick += 1
        if self._patient:
            assert self._tick < LAST_TICK, "the scheduler does not come to rest"
            waiting = [req.grammar for req in scheduler.grammar_manager.grammar_queue]
            compiling = [one for one in waiting if isinstance(one, futures.Future)]
            assert not futures.wait(compiling, timeout=COMPILED_S).not_done
        if not due and not self._events and self._follow_up is not None:
            more = self._follow_up(scheduler)
            if more is not None:
                due, self._follow_up = list(more), None
        return [event.message(scheduler) for event in due]

    def exhausted(self) -> bool:
        return not self._events and self._follow_up is None


@dataclass
class Seen:
    """What one client sees: the chunks in order, without what depends on timing."""

    chunks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The generated tokens: a chunk repeats some context before its new ones."""
        last = self.chunks[-1]
        ids = [token for chunk in self.chunks for token in chunk["decode_ids"]]
        return ids[len(ids) - last["completion_tokens"] :] if last["completion_tokens"] else []

    @property
    def finish(self) -> dict[str, Any] | None:
        reason: dict[str, Any] | None = self.chunks[-1]["finished_reasons"]
        return reason


@dataclass
class Rig:
    """A running scheduler."""

    scheduler: Any

    def play(
        self,
        events: Sequence[Event],
        follow_up: Callable[[Any], Sequence[Event] | None] | None = None,
        *,
        patient: bool = True,
    ) -> dict[str, Seen]:
        """Run a schedule from an empty cache to idle; check that nothing has leaked."""
        sent = run(self.scheduler, Script(events, follow_up, patient=patient))
        assert_balanced(self.scheduler)
        assert self.scheduler.flush_cache(empty_cache=False)
        return seen(sent.to_detokenizer)

    @property
    def stats(self) -> Any:
        """The loop's counters of the last schedule."""
        return self.scheduler.photon_loop.stats

    @property
    def pipeline(self) -> Any:
        """The pipeline of the last schedule."""
        return self.scheduler.photon_loop.pipeline


@contextmanager
def rig(
    *arguments: str, loop: str, lane: str = "inline", hashed: bool = True, model: str = MODEL
) -> Iterator[Rig]:
    """A scheduler of a tiny model, by default with the hash body."""
    given = ["--max-total-tokens", str(POOL), "--max-running-requests", "8", *arguments]
    with in_process_scheduler(
        ["--model-path", names.resolve(model).path, *given], loop=loop, make_lane=LANES[lane]
    ) as scheduler:
        # Matrices this small are slower on several threads, and much slower on a busy machine.
        torch.set_num_threads(1)
        if hashed:
            HashBody.install(scheduler.tp_worker.model_runner)
        yield Rig(scheduler)


def seen(messages: Sequence[Any]) -> dict[str, Seen]:
    """Sort messages to the detokenizer by client."""
    clients: dict[str, Seen] = defaultdict(Seen)
    for message in messages:
        if not hasattr(message, "decode_ids"):
            continue
        for index, rid in enumerate(message.rids):
            chunk = {
                name: _plain(value[index])
                for name in message.__struct_fields__
                if name not in TIMING
                and isinstance(value := getattr(message, name), list)
                and len(value) == len(message.rids)
            }
            if chunk.get("output_hidden_states"):
                chunk["output_hidden_states"] = _of_tokens(chunk)
            # Whether an empty field is there at all depends on who shares the message.
            clients[rid].chunks.append(
                {k: v for k, v in chunk.items() if k in ALWAYS or v not in (None, [])}
            )
    return dict(clients)


def assert_balanced(scheduler: Any) -> None:
    """Free + cached = total, every page once, every request row free."""
    allocator = scheduler.token_to_kv_pool_allocator
    cached = scheduler.tree_cache.evictable_size()
    assert allocator.available_size() + cached == scheduler.max_total_num_tokens
    pages = allocator.free_pages.tolist()
    assert len(set(pages)) == len(pages), "a page is free twice"
    rows = scheduler.req_to_token_pool.free_slots
    assert len(set(rows)) == len(rows) == scheduler.req_to_token_pool.size


def _of_tokens(chunk: dict[str, Any]) -> list[Any]:
    """The hidden states of the generated tokens: of the prompt, those of what was not cached."""
    rows: list[Any] = []
    for entry in chunk["output_hidden_states"]:
        rows.extend(entry if isinstance(entry[0], list) else [entry])
    return rows[len(rows) - chunk["completion_tokens"] :]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, array.array) else value
