"""Grammars that are still compiling: looked at in microseconds, given up after a time limit.

SGLang waits up to 5 ms in every tick in which a grammar compiles, and counts ticks until it gives
up. Both make the tick wait for the compiler, and the limit depend on how fast the ticks are.
"""

from __future__ import annotations

import time
from typing import Any

from sglang.srt.environ import envs

GLANCE_SECONDS = 2e-5
"""Long enough for one look at every grammar that waits: upstream looks at least once."""


class GrammarDeadlines:
    """Turns upstream's count of polls into a time limit.

    The limit is what upstream's two settings mean together when nothing else takes time:
    `SGLANG_GRAMMAR_POLL_INTERVAL` times `SGLANG_GRAMMAR_MAX_POLL_ITERATIONS` (50 s).

    Args:
        manager: the scheduler's grammar manager; its poll interval is shortened.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        interval = envs.SGLANG_GRAMMAR_POLL_INTERVAL.get()
        self.seconds = interval * envs.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS.get()
        self._since: dict[Any, float] = {}
        manager.SGLANG_GRAMMAR_POLL_INTERVAL = min(interval, GLANCE_SECONDS)

    def enforce(self) -> None:
        """Before a plan: let upstream give up on what has waited too long, and on nothing else."""
        waiting = self._manager.grammar_queue
        if not waiting:
            self._since.clear()
            return
        now = time.monotonic()
        self._since = {req: self._since.get(req, now) for req in waiting}
        last = self._manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS
        for req, since in self._since.items():
            req.grammar_wait_ct = last if now - since >= self.seconds else 0
