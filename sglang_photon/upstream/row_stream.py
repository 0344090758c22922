"""Chunks of rows that stream every token: SGLang's message, packed.

The first chunk of a request is made by SGLang's own streamer. Its columns are noted on their way
out, and repeated with every later chunk, beside one new token. Requests that end, or stream in
another way, are SGLang's streamer's as before; `catch_up` tells it where a request stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import BatchTokenIDOutput

from sglang_photon.rows import wire
from sglang_photon.upstream.row_facts import stream_interval

REPEATED = (
    "rids",
    "http_worker_ipcs",
    "decoded_texts",
    "read_offsets",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "prompt_tokens",
    "reasoning_tokens",
    "cached_tokens",
    "cached_tokens_details",
    "image_tokens",
    "audio_tokens",
    "video_tokens",
    "retraction_counts",
    "time_stats",
    "dp_ranks",
)
"""Columns of a message that say the same of a request in every chunk."""

EMPTY = (
    "spec_verify_ct",
    "spec_num_correct_drafts",
    "spec_num_block_accept_tokens",
    "spec_num_cap_tokens",
    "spec_correct_drafts_histogram",
    "spec_cap_lens_histogram",
)
"""Columns of speculative decoding: lists without entries in every other message."""

NEW = ("finished_reasons", "decode_ids", "output_ids", "completion_tokens")
"""Columns that a chunk brings."""

ABSENT = tuple(
    name for name in BatchTokenIDOutput.__struct_fields__ if name not in (*REPEATED, *EMPTY, *NEW)
)
"""Fields of requests that want more than tokens."""


class PackedTokens:
    """A `BatchTokenIDOutput` of rows that each have one new token.

    Pickled, it is bytes; unpickled, it is SGLang's message.

    Args:
        rids: the requests.
        header: what repeats, from `wire.pack_header`.
        tokens: (rows,) int64.
        counts: (rows,) int64, output tokens so far.
    """

    def __init__(
        self,
        *,
        rids: Sequence[str],
        header: bytes,
        tokens: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        self.rids = rids
        self.finished_reasons = (None,) * len(rids)
        self._header = header
        self._tokens = tokens.tobytes()
        self._counts = counts.tobytes()

    @property
    def completion_tokens(self) -> list[int]:
        """Output tokens of each request so far."""
        return wire.tokens_of(self._counts)

    def received(self) -> BatchTokenIDOutput:
        """What the other end of the socket gets."""
        return unpack(self._header, self._tokens, self._counts)

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, (self._header, self._tokens, self._counts)


def unpack(header: bytes, tokens: bytes, counts: bytes) -> BatchTokenIDOutput:
    """The message as SGLang would have sent it."""
    new = wire.tokens_of(tokens)
    return BatchTokenIDOutput(
        finished_reasons=[None] * len(new),
        decode_ids=wire.each_alone(new),
        output_ids=wire.each_alone(new),
        completion_tokens=wire.tokens_of(counts),
        **wire.columns(header),
        **{name: [] for name in EMPTY},
        **dict.fromkeys(ABSENT),
    )


def _repeated(output: BatchTokenIDOutput, index: int) -> list[Any]:
    columns = (getattr(output, name) for name in REPEATED)
    return [None if column is None else column[index] for column in columns]


class _Tap:
    """SGLang's sender, which notes the columns of chunks that pass."""

    def __init__(self, sender: Any, notes: dict[str, bytes]) -> None:
        self._sender = sender
        self._notes = notes

    def send_output(self, output: Any, recv_obj: Any = None) -> None:
        """As `SenderWrapper.send_output`."""
        if isinstance(output, BatchTokenIDOutput):
            for index, rid in enumerate(output.rids):
                if output.finished_reasons[index] is not None:
                    self._notes.pop(rid, None)
                elif rid not in self._notes and len(output.output_ids[index]) == 1:
                    self._notes[rid] = wire.pack_row(_repeated(output, index))
        self._sender.send_output(output, recv_obj)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)


class RowStream:
    """The chunks of one scheduler's rows.

    Args:
        scheduler: whose streamer and sender are used.
    """

    def __init__(self, scheduler: Any) -> None:
        self._streamer = scheduler.output_streamer
        self._notes: dict[str, bytes] = {}
        self._sender = self._streamer.send_to_detokenizer
        if self._streamer.rust_server is None and envs.SGLANG_USE_PICKLE_IPC.get():
            self._streamer.send_to_detokenizer = _Tap(self._sender, self._notes)

    def close(self) -> None:
        """Give SGLang's streamer its sender back."""
        self._streamer.send_to_detokenizer = self._sender

    def is_plain(self, req: Any) -> bool:
        """Whether the request streams every token, and has streamed one."""
        return req.rid in self._notes and stream_interval(req) == 1

    def forget(self, req: Any) -> None:
        """What was noted of the request is no longer true."""
        self._notes.pop(req.rid, None)

    def header(self, reqs: Sequence[Any]) -> bytes:
        """What repeats of these requests, all of them plain."""
        return wire.pack_header(REPEATED, [self._notes[req.rid] for req in reqs])

    def send(self, message: PackedTokens) -> None:
        """One chunk each."""
        self._sender.send_output(message)

    def ask(self, reqs: Sequence[Any], *, logprobs: bool) -> None:
        """Let SGLang's streamer decide about these requests."""
        self._streamer.stream_output(reqs, logprobs)

    @staticmethod
    def catch_up(req: Any, *, sent: int) -> None:
        """Tell SGLang's streamer that so many tokens of the request have been sent."""
        if req.send_token_offset >= sent:
            return
        req.send_token_offset = sent
        req.surr_and_decode_ids.extend(req.output_ids[req.cur_decode_ids_len : sent])
        req.cur_decode_ids_len = sent
        req.send_decode_id_offset = len(req.surr_and_decode_ids)
