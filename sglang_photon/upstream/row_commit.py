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
    """A cohort as its commits read it; made at the first, when every row's start is known."""

    def __init__(self, cohort: Cohort, table: RowTable) -> None:
        self.appends = [req.output_ids.append for req in cohort.requests]
        self.special = np.flatnonzero(table.special[cohort.places])
        self.plain = np.flatnonzero(table.plain[cohort.places])
        self.header: bytes | None = None
        self.plain_rids: tuple[str, ...] = ()


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
        self._views: tuple[Cohort | None, _View | None] = (None, None)

    def expect(self, req: Any, place: int) -> None:
        """The request joins: where it stands is read when its first decode step is committed."""
        self._fresh[req] = place

    def forget(self, req: Any) -> None:
        """The request leaves."""
        self._fresh.pop(req, None)

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
        if self._fresh:
            self._start(cohort)
        view = self._view(cohort)
        table, places = self._table, cohort.places
        live = np.flatnonzero(~table.ended[places]) if zombies else None
        if live is not None:
            places, tokens = places[live], tokens[live]
        counts = table.out_len[places]
        counts += 1
        table.out_len[places] = counts
        looks = table.ends.hits(tokens)
        due = counts >= table.ask_at[places]
        if due.any():
            looks |= counts >= table.limit[places]
        values = tokens.tolist()
        if live is None:
            for append, token in zip(view.appends, values, strict=True):
                append(token)
            looks[view.special] = True
            requests: Sequence[Any] = cohort.requests
        else:
            for index, token in zip(live.tolist(), values, strict=True):
                view.appends[index](token)
            looks |= table.special[places]
            requests = [cohort.requests[index] for index in live.tolist()]
        if any(map(TO_FINISH, requests)):
            looks |= np.fromiter(map(bool, map(TO_FINISH, requests)), np.bool_, len(requests))
        looked = np.flatnonzero(looks)
        ended = self._look(cohort, batch, result, requests, looked, live, values)
        self._send(view, cohort, places, tokens, counts, live)
        self._ask(requests, np.flatnonzero(looks | due), places, batch)
        if ended:
            self._scheduler._maybe_clear_mm_inputs(SimpleNamespace(reqs=ended))

    def _start(self, cohort: Cohort) -> None:
        table = self._table
        for req in cohort.requests:
            place = self._fresh.pop(req, None)
            if place is None:
                continue
            committed = len(req.output_ids)
            plain = not table.special[place] and self._stream.is_plain(req)
            table.out_len[place] = committed
            table.plain[place] = plain
            table.limit[place] = req.sampling_params.max_new_tokens
            table.ask_at[place] = next_look(req, committed=committed, plain=plain)

    def _view(self, cohort: Cohort) -> _View:
        known, view = self._views
        if known is not cohort or view is None:
            view = _View(cohort, self._table)
            self._views = (cohort, view)
        return view

    def _look(
        self,
        cohort: Cohort,
        batch: Any,
        result: Any,
        requests: Sequence[Any],
        looked: NDArray[np.intp],
        live: NDArray[np.intp] | None,
        values: list[int],
    ) -> list[Any]:
        """SGLang's own handling of one new token, for the rows that need it; who ended."""
        if not len(looked):
            return []
        processor = self._processor
        logits = result.logits_output
        logprobs = None
        if batch.return_logprob:
            _, logprobs = processor._normalize_decode_outputs(
                batch=batch, result=result, logits_output=logits, next_token_ids=values
            )
        ended = []
        for index in looked.tolist():
            req, token = requests[index], [values[index]]
            row = index if live is None else int(live[index])
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

    def _send(
        self,
        view: _View,
        cohort: Cohort,
        places: Places,
        tokens: NDArray[np.int64],
        counts: NDArray[np.int64],
        live: NDArray[np.intp] | None,
    ) -> None:
        """One packed message for the rows that stream every token and have not ended."""
        table = self._table
        if live is None and not table.ended[places].any():
            rows = view.plain
            if not len(rows):
                return
            if view.header is None:
                reqs = [cohort.requests[row] for row in rows.tolist()]
                view.header = self._stream.header(reqs)
                view.plain_rids = tuple(req.rid for req in reqs)
            header, rids = view.header, view.plain_rids
        else:
            rows = np.flatnonzero(table.plain[places] & ~table.ended[places])
            if not len(rows):
                return
            original = rows if live is None else live[rows]
            reqs = [cohort.requests[row] for row in original.tolist()]
            header, rids = self._stream.header(reqs), tuple(req.rid for req in reqs)
        self._stream.send(
            PackedTokens(rids=rids, header=header, tokens=tokens[rows], counts=counts[rows])
        )
        if cohort.retired:
            original = rows if live is None else live[rows]
            for row, count in zip(original.tolist(), counts[rows].tolist(), strict=True):
                self._stream.catch_up(cohort.requests[row], sent=count)

    def _ask(
        self, requests: Sequence[Any], looked: NDArray[np.intp], places: Places, batch: Any
    ) -> None:
        """SGLang's streamer for everybody else who has something to say."""
        table = self._table
        asked = [
            (requests[index], places[index])
            for index in looked.tolist()
            if not table.plain[places[index]] or requests[index].finished()
        ]
        if not asked:
            return
        for req, place in asked:
            if table.plain[place]:
                self._stream.catch_up(req, sent=int(table.out_len[place]) - 1)
        self._stream.ask([req for req, _ in asked], logprobs=batch.return_logprob)
        for req, place in asked:
            committed = int(table.out_len[place])
            table.ask_at[place] = next_look(req, committed=committed, plain=False)
