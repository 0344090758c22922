"""The commit of a decode step on rows: one pass of vector operations, and a look at few requests.

Tokens are appended for all rows; which rows may have ended, or owe a chunk, comes out of two
comparisons. Those rows, and the special ones (grammar, logprobs, stop strings, ...), are taken
through SGLang's own functions, in the order in which SGLang's result processor calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_photon.rows.table import Cohort, Places, RowTable
from sglang_photon.upstream.row_facts import next_look
from sglang_photon.upstream.row_stream import PackedTokens, RowStream

TO_FINISH = attrgetter("to_finish")


class _View:
    """A cohort as its commits read it.

    Attributes:
        appends: for each row, what takes its new token.
        special: some row needs a look after every token.
        plain: the rows that stream every token, and what their chunks repeat.
        counts: (plain rows,) their output tokens.
        quiet: commits until something is due.
    """

    def __init__(self, cohort: Cohort, table: RowTable) -> None:
        places = cohort.places
        self._table = table
        self._unsettled = 0
        self.cohort = cohort
        self.appends = [req.output_ids.append for req in cohort.requests]
        self.special = bool(table.special[places].any())
        self.plain = np.flatnonzero(table.plain[places])
        self.counts: Places = table.out_len[places[self.plain]]
        self.header = b""
        self.rids: tuple[str, ...] = ()
        self.quiet = 0
        self.look_ahead()

    def count(self) -> None:
        """One more token for every row."""
        self._unsettled += 1
        self.quiet -= 1

    def settle(self) -> None:
        """Write the tokens so far into the table."""
        if self._unsettled:
            self._table.out_len[self.cohort.places] += self._unsettled
            self._unsettled = 0

    def look_ahead(self) -> None:
        """Find out how long nothing will be due; with everything settled."""
        places = self.cohort.places
        self.quiet = int((self._table.ask_at[places] - self._table.out_len[places]).min())


class Committer:
    """Commits steps of one scheduler's rows.

    Args:
        scheduler: whose requests they are.
        table: their rows.
        stream: where chunks go.
    """

    def __init__(self, *, scheduler: Any, table: RowTable, stream: RowStream) -> None:
        self._scheduler = scheduler
        self._table = table
        self._stream = stream
        self._processor = scheduler.batch_result_processor
        self._fresh: dict[Any, int] = {}
        self._view: _View | None = None
        self.abort_is_possible = False

    def expect(self, req: Any, place: int) -> None:
        """The request joins: where it stands is read when its first decode step is committed."""
        self._fresh[req] = place

    def forget(self, req: Any) -> None:
        """The request leaves."""
        self._fresh.pop(req, None)

    def settle(self) -> None:
        """Write the tokens so far into the table: before anybody reads it."""
        if self._view is not None:
            self._view.settle()

    def commit(
        self,
        *,
        cohort: Cohort,
        batch: Any,
        result: Any,
        tokens: NDArray[np.int64],
        zombies: int,
    ) -> None:
        """Append tokens, find ends, stream.

        Args:
            cohort: who decoded.
            batch: the cohort as a batch of SGLang's, for its functions.
            result: with logprobs and hidden states on the host, where asked for.
            tokens: (rows,) what was sampled.
            zombies: rows that had ended before.
        """
        view = self._view
        if view is None or view.cohort is not cohort:
            view = self._open(cohort)
        care = view.special or cohort.retired or self.abort_is_possible
        if care or zombies or view.quiet <= 1:
            self._commit_with_care(view, batch, result, tokens, zombies=zombies)
            return
        hits = self._table.ends.hits(tokens)
        if hits.any():
            self._commit_with_care(view, batch, result, tokens, zombies=0)
            return
        view.count()
        for append, token in zip(view.appends, tokens.tolist(), strict=True):
            append(token)
        if len(view.plain):
            view.counts += 1
            self._send(view, tokens)

    def _open(self, cohort: Cohort) -> _View:
        self.settle()
        table = self._table
        for req in cohort.requests if self._fresh else ():
            place = self._fresh.pop(req, None)
            if place is None:
                continue
            committed = len(req.output_ids)
            plain = not table.special[place] and self._stream.is_plain(req)
            table.out_len[place] = committed
            table.plain[place] = plain
            table.limit[place] = req.sampling_params.max_new_tokens
            table.ask_at[place] = next_look(req, committed=committed, plain=plain)
        self._view = _View(cohort, table)
        return self._view

    def _commit_with_care(
        self, view: _View, batch: Any, result: Any, tokens: NDArray[np.int64], *, zombies: int
    ) -> None:
        """A step in which some row may end, owes a chunk, is special, or had ended before."""
        view.settle()
        cohort, table = view.cohort, self._table
        live = np.arange(len(cohort))
        if zombies:
            live = np.flatnonzero(~table.ended[cohort.places])
        rows = live.tolist()
        places, tokens = cohort.places[live], tokens[live]
        requests = [cohort.requests[row] for row in rows]
        values = tokens.tolist()
        for row, token in zip(rows, values, strict=True):
            view.appends[row](token)
        counts = table.out_len[places] + 1
        table.out_len[places] = counts
        looks = table.ends.hits(tokens) | table.special[places] | (counts >= table.limit[places])
        looks |= np.fromiter(map(bool, map(TO_FINISH, requests)), np.bool_, len(requests))
        due = looks | (counts >= table.ask_at[places])
        looked = np.flatnonzero(looks).tolist()
        ended = self._look(
            batch, result, [(rows[i], requests[i], values[i]) for i in looked], values
        )
        self._stream_with_care(view, batch, live, np.flatnonzero(due), tokens)
        if ended:
            self._scheduler._maybe_clear_mm_inputs(SimpleNamespace(reqs=ended))
        self.abort_is_possible = False
        view.counts = table.out_len[cohort.places[view.plain]]
        view.look_ahead()

    def _look(
        self,
        batch: Any,
        result: Any,
        looked: Sequence[tuple[int, Any, int]],
        values: list[int],
    ) -> list[Any]:
        """SGLang's own handling of one new token, for (row, request, token) that need it.

        Returns:
            The requests that have ended.
        """
        processor, logits = self._processor, result.logits_output
        logprobs = None
        if batch.return_logprob:
            _, logprobs = processor._normalize_decode_outputs(
                batch=batch, result=result, logits_output=logits, next_token_ids=values
            )
        ended = []
        for row, req, value in looked:
            token = [value]
            req.time_stats.set_last_decode_finish_time()
            processor._maybe_update_reasoning_tokens(req, token)
            req.update_finish_state(1)
            processor._handle_finish_state_updated_req(req, batch, result, row, logits)
            if req.return_logprob:
                processor._apply_decode_logprobs(
                    req=req,
                    i=row,
                    batch=batch,
                    next_token_id=token,
                    next_token_logprobs=logprobs,
                    logits_output=logits,
                )
            if req.return_hidden_states and logits.hidden_states is not None:
                processor._append_decode_hidden_states(
                    req=req, hidden_states=logits.hidden_states, start=row, accept_len=1
                )
            if req.grammar is not None:
                processor._accept_grammar_tokens(req, token)
                req.grammar.finished = req.finished()
            if req.finished():
                ended.append(req)
        return ended

    def _send(self, view: _View, tokens: NDArray[np.int64]) -> None:
        """One packed message for all rows that stream every token."""
        if not view.header:
            reqs = [view.cohort.requests[row] for row in view.plain.tolist()]
            view.header = self._stream.header(reqs)
            view.rids = tuple(req.rid for req in reqs)
        self._stream.send(
            PackedTokens(
                rids=view.rids, header=view.header, tokens=tokens[view.plain], counts=view.counts
            )
        )

    def _stream_with_care(
        self,
        view: _View,
        batch: Any,
        live: NDArray[np.intp],
        due: NDArray[np.intp],
        tokens: NDArray[np.int64],
    ) -> None:
        """Packed chunks of those who go on; SGLang's streamer for everybody else who is due."""
        cohort, table = view.cohort, self._table
        places = cohort.places[live]
        going_on = table.plain[places] & ~table.ended[places]
        picked = np.flatnonzero(going_on)
        if len(picked):
            reqs = [cohort.requests[row] for row in live[picked].tolist()]
            counts = table.out_len[places[picked]]
            self._stream.send(
                PackedTokens(
                    rids=tuple(req.rid for req in reqs),
                    header=self._stream.header(reqs),
                    tokens=tokens[picked],
                    counts=counts,
                )
            )
            if cohort.retired:
                for req, count in zip(reqs, counts.tolist(), strict=True):
                    self._stream.catch_up(req, sent=count)
        asked = [(cohort.requests[live[i]], places[i]) for i in due.tolist() if not going_on[i]]
        if not asked:
            return
        for req, place in asked:
            if table.plain[place]:
                self._stream.catch_up(req, sent=int(table.out_len[place]) - 1)
        self._stream.ask([req for req, _ in asked], logprobs=batch.return_logprob)
        for req, place in asked:
            committed = int(table.out_len[place])
            table.ask_at[place] = next_look(req, committed=committed, plain=False)
