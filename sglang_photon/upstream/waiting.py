"""Waiting without spinning: an idle server takes no CPU and wakes within a millisecond.

SGLang polls its sockets as fast as it can unless `--sleep-on-idle` is given. Here the loop blocks
on them whenever nothing is in flight and nothing can run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import zmq

IDLE_SECONDS = 3.0
"""Longest wait of an idle server: its housekeeping (metrics, timeouts) runs this often."""

STALLED_SECONDS = 0.002
"""Longest wait while requests wait for something that sends no message: a grammar that compiles, a
cache that is being filled."""


class SocketWaiter:
    """Waits for any message to the scheduler.

    Args:
        sockets: what messages come in on; none on ranks that receive by broadcast, which then
            must not wait here, since the broadcast is where they wait.
    """

    def __init__(self, sockets: Iterable[Any]) -> None:
        self._poller = zmq.Poller()
        self._any = False
        for socket in sockets:
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)
                self._any = True

    def wait(self, seconds: float) -> None:
        """Return when a message is there, or after so many seconds."""
        if self._any:
            self._poller.poll(seconds * 1e3)
