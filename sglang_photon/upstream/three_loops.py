"""One scheduler on a real device that runs any of the three loops, one run after another.

Constructing a scheduler loads weights and captures graphs, which takes longer than what is measured
with it; and loops that take turns within seconds meet the same machine. So the scheduler is built
once, for overlap, and told before each run which loop it is to be.

Requests come without HTTP, as in `in_process`: prompts of token ids, pictures as the features that
the tokenizer process would send.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from sglang.srt.layers.rotary_embedding import MRotaryEmbedding
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.mm_utils import hash_feature
from sglang.srt.managers.schedule_batch import (
    Modality,
    MultimodalDataItem,
    MultimodalProcessorOutput,
)
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_photon.loop.eligibility import PHOTON, SGLANG, LoopChoice
from sglang_photon.upstream.in_process import QUIET, in_process_scheduler, run
from sglang_photon.upstream.requests import tokenized

PLANS = ("init_forward_metadata", "init_forward_metadata_out_graph")
"""Of the attention backend: what runs on the host before a forward, without and with a graph."""

PATCH, MERGE, FRAMES = 14, 2, 2
"""Of Qwen2.5-VL's vision tower: pixels of a patch, patches merged to a token, frames stacked."""


class Probe(Protocol):
    """Looks at the device for a few steps."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One kind of request.

    Attributes:
        prompt: tokens of text.
        side: pixels of the square picture in front of it; 0: none.
        tokens: to generate.
        stream: whether every token is sent at once.
    """

    prompt: int
    side: int
    tokens: int
    stream: bool


@dataclass(kw_only=True)
class Outcome:
    """What a run showed.

    Attributes:
        wall_s: of the steps between the marks.
        steps: how many.
        traced: steps while the probe looked.
        plan_s: host time of the attention backend's preparation, of the steps between the marks.
        tokens: of each request, in order.
    """

    wall_s: float
    steps: int
    traced: int
    plan_s: float
    tokens: list[list[int]]


@dataclass(kw_only=True)
class _Steady:
    """Sends all requests at once; marks the clock while they all decode, then lets a probe look."""

    loops: ThreeLoops
    messages: list[Any]
    warm: int
    steps: int
    traced: int
    probe: Probe
    marks: list[tuple[float, int, float]] = field(default_factory=list)
    _rows: int = 0
    _wanted: list[int] = field(default_factory=list)

    def poll(self, scheduler: Any) -> list[Any]:
        due, self.messages = self.messages, []
        self._rows += len(due)
        forwards = self.loops.forwards
        if not self._wanted and len(scheduler.running_batch.reqs) == self._rows:
            start = forwards + self.warm
            settled = start + self.steps + self.warm
            self._wanted = [start, start + self.steps, settled, settled + self.traced]
        if len(self.marks) < len(self._wanted) and forwards >= self._wanted[len(self.marks)]:
            if len(self.marks) == 2:
                self.probe.start()
            loops = self.loops
            self.marks.append((time.perf_counter(), loops.forwards, loops.plan_s))
            if len(self.marks) == 4:
                self.probe.stop()
        return due

    def exhausted(self) -> bool:
        return not self.messages


@dataclass(kw_only=True)
class _Late:
    """Text rows that decode, and one request with a picture that comes when they all do."""

    loops: ThreeLoops
    messages: list[Any]
    late: Any
    warm: int
    sent_at: float | None = None
    first_s: float | None = None
    _rows: int = 0
    _start: int | None = None
    _seen: int = 0

    def poll(self, scheduler: Any) -> list[Any]:
        due, self.messages = self.messages, []
        self._rows += len(due)
        if self._start is None and len(scheduler.running_batch.reqs) == self._rows:
            self._start = self.loops.forwards + self.warm
        if self.sent_at is None and self._start is not None and self.loops.forwards >= self._start:
            self.sent_at = time.perf_counter()
            self._seen = len(scheduler.outbox.to_detokenizer)
            return [*due, self.late]
        if self.sent_at is not None and self.first_s is None:
            new = scheduler.outbox.to_detokenizer[self._seen :]
            self._seen += len(new)
            if any(self.late.rid in getattr(message, "rids", ()) for message in new):
                self.first_s = time.perf_counter() - self.sent_at
        return due

    def exhausted(self) -> bool:
        return not self.messages and self.sent_at is not None


class ThreeLoops:
    """See the module. Use `open`.

    Args:
        scheduler: a Photon scheduler in this process.

    Attributes:
        scheduler: the same.
        forwards: forwards since it was built.
        plan_s: host time of the attention backend's preparations since then.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.forwards = 0
        self.plan_s = 0.0
        self._serial = 0
        self._config = scheduler.model_config.hf_config
        processor = scheduler.batch_result_processor
        self._processors = {
            True: processor,
            False: dataclasses.replace(processor, enable_overlap=False),
        }
        worker = scheduler.tp_worker
        forward = worker.forward_batch_generation

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.forwards += 1
            return forward(*args, **kwargs)

        worker.forward_batch_generation = counted
        self._time_plans(worker.model_runner.attn_backend)

    @classmethod
    @contextmanager
    def open(
        cls, arguments: Sequence[str], *, defaults: Sequence[tuple[str, str]] = QUIET
    ) -> Iterator[ThreeLoops]:
        """Build the scheduler.

        Args:
            arguments: SGLang's.
            defaults: of arguments that are not given.
        """
        before = os.environ.get("SGLANG_PHOTON_LOOP")
        os.environ["SGLANG_PHOTON_LOOP"] = PHOTON
        try:
            with in_process_scheduler(
                arguments, loop="photon", make_lane=None, defaults=defaults
            ) as scheduler:
                yield cls(scheduler)
        finally:
            os.environ.pop("SGLANG_PHOTON_LOOP")
            if before is not None:
                os.environ["SGLANG_PHOTON_LOOP"] = before

    def _time_plans(self, backend: Any) -> None:
        """Time what the attention backend prepares on the host for each forward."""
        for name in PLANS:
            setattr(backend, name, self._timed(getattr(backend, name)))

    def _timed(self, plan: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = plan(*args, **kwargs)
            self.plan_s += time.perf_counter() - began
            return result

        return timed

    def use(self, loop: str) -> None:
        """Which loop the next runs are: `blocking`, `sglang` or `photon`."""
        scheduler = self.scheduler
        overlap = loop != "blocking"
        scheduler.enable_overlap = scheduler.tp_worker.enable_overlap = overlap
        scheduler.batch_result_processor = self._processors[overlap]
        # What a run of Photon's loop leaves on the scheduler would be taken for a loop that runs.
        scheduler.photon_loop = scheduler.photon_rows = scheduler.photon_holds = None
        scheduler.photon_ipc = scheduler.photon_inbox = None
        scheduler.photon_choice = LoopChoice(
            loop=PHOTON if loop == "photon" else SGLANG, reason="a benchmark asks for it"
        )

    def steady(
        self, ask: Ask, *, batch: int, warm: int, steps: int, traced: int, probe: Probe
    ) -> Outcome:
        """Decode `batch` such requests at once; `ask.tokens` must cover all the steps."""
        messages = [self.message(ask) for _ in range(batch)]
        source = _Steady(
            loops=self, messages=list(messages), warm=warm, steps=steps, traced=traced, probe=probe
        )
        sent = run(self.scheduler, source)
        (began, first, plan), (ended, last, planned), (_, look, _), (_, done, _) = source.marks
        return Outcome(
            wall_s=ended - began,
            steps=last - first,
            traced=done - look,
            plan_s=planned - plan,
            tokens=[_tokens(sent.to_detokenizer, message.rid) for message in messages],
        )

    def first_token_s(self, ask: Ask, *, beside: Ask, batch: int, warm: int) -> float | None:
        """Seconds from a request's arrival to its first token, beside `batch` decoding rows."""
        source = _Late(
            loops=self,
            messages=[self.message(beside) for _ in range(batch)],
            late=self.message(ask),
            warm=warm,
        )
        run(self.scheduler, source)
        return source.first_s

    def rewind(self) -> None:
        """The next requests are those of the run before, token for token."""
        self._serial = 0

    def message(self, ask: Ask) -> TokenizedGenerateReqInput:
        """A request as the tokenizer process would send it; prompts and pictures differ."""
        self._serial += 1
        params = SamplingParams(temperature=0.0, max_new_tokens=ask.tokens, ignore_eos=True)
        params.normalize(self.scheduler.tokenizer)
        random = torch.Generator().manual_seed(self._serial)
        vocab = self.scheduler.model_config.vocab_size
        # The demo tokenizer's special tokens are below 1000; a small vocabulary is all there is.
        low = 1000 if vocab > 2000 else 0
        high = min(vocab, self._config.image_token_id) if vocab > 2000 else 200
        ids = torch.randint(low, high, (ask.prompt,), generator=random).tolist()
        picture = None
        if ask.side:
            ids, picture = self._picture(ask.side, ids, random)
        return tokenized(
            rid=str(self._serial), ids=ids, params=params, stream=ask.stream, mm_inputs=picture
        )

    def _picture(
        self, side: int, text: list[int], random: torch.Generator
    ) -> tuple[list[int], MultimodalProcessorOutput]:
        """Put a square picture of noise in front of a text."""
        config = self._config
        across = side // (PATCH * MERGE) * MERGE
        grid = torch.tensor([[1, across, across]])
        count = across * across // MERGE**2
        ids = [config.vision_start_token_id, *[config.image_token_id] * count]
        offsets = [(1, count)]
        ids += [config.vision_end_token_id, *text]
        pixels = torch.randn(across * across, 3 * FRAMES * PATCH**2, generator=random)
        positions, delta = MRotaryEmbedding.get_rope_index(
            spatial_merge_size=MERGE,
            image_token_id=config.image_token_id,
            video_token_id=config.video_token_id,
            vision_start_token_id=config.vision_start_token_id,
            model_type=config.model_type,
            tokens_per_second=getattr(config.vision_config, "tokens_per_second", None),
            input_ids=torch.tensor([ids]),
            image_grid_thw=grid,
            video_grid_thw=None,
        )
        item = MultimodalDataItem(
            modality=Modality.IMAGE,
            feature=pixels,
            offsets=offsets,
            model_specific_data={"image_grid_thw": grid},
        )
        return ids, MultimodalProcessorOutput(
            mm_items=[item],
            input_ids=ids,
            im_token_id=config.image_token_id,
            mrope_positions=positions.squeeze(1),
            mrope_position_delta=delta,
        )


def _tokens(messages: Sequence[Any], rid: str) -> list[int]:
    """The generated tokens of one request, from the chunks that the detokenizer gets."""
    ids: list[int] = []
    total = 0
    for message in messages:
        rids = getattr(message, "rids", None)
        if rids is None or rid not in rids or not hasattr(message, "decode_ids"):
            continue
        index = rids.index(rid)
        ids += message.decode_ids[index]
        total = message.completion_tokens[index]
    return ids[len(ids) - total :]


def hash_waits() -> bool:
    """Whether SGLang's hash of a feature on the GPU makes the host wait for the device."""
    feature = torch.randn(5476, 1176, device="cuda")
    hash_feature(feature)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        hash_feature(feature)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False
