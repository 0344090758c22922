"""`ByteBudget`: how much host memory pictures may take that are decoded or wait to be served.

A picture is small as a file and large in memory: a burst of requests can exhaust a machine before
the scheduler has heard of any of them. Each request asks for its share first. What does not fit
waits in order of arrival, for so long, and is then refused with a time to come back. Nothing is
held by a request that has ended, however it ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from sglang_photon.errors import PhotonError

PATIENCE_S = 10.0
RETRY_AFTER_S = 5


class BudgetExceededError(PhotonError):
    """No room became free in time."""

    def __init__(self, wanted: int, limit: int) -> None:
        super().__init__(
            f"The images of this request take {_mb(wanted)} of memory, and within "
            f"{PATIENCE_S:g} s not so much of the server's {_mb(limit)} became free",
            f"Come back in {RETRY_AFTER_S} s, or raise --photon-mm-budget-mb",
        )


class RequestTooLargeError(ValueError):
    """A request that would not fit into the empty budget. SGLang answers with status 400."""

    def __init__(self, wanted: int, limit: int) -> None:
        super().__init__(
            f"The images of this request take {_mb(wanted)} of memory, of which the server has "
            f"{_mb(limit)} for images: send fewer or smaller images, or raise "
            "--photon-mm-budget-mb"
        )


@dataclass(slots=True)
class BudgetStats:
    """Counters since the start, and what is held now.

    Attributes:
        admitted: requests that got their share.
        waited: those of them that had to wait.
        refused: requests that waited in vain, or were too large.
        held: bytes.
        peak: most bytes ever held.
    """

    admitted: int = 0
    waited: int = 0
    refused: int = 0
    held: int = 0
    peak: int = 0


class ByteBudget:
    """A number of bytes, shared by requests on one event loop.

    Args:
        limit: bytes.
        patience: seconds that a request waits at most.
    """

    def __init__(self, *, limit: int, patience: float = PATIENCE_S) -> None:
        self.limit = limit
        self._patience = patience
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.stats = BudgetStats()

    async def take(self, nbytes: int) -> Share:
        """A share of so many bytes.

        Raises:
            RequestTooLargeError: there will never be so many.
            BudgetExceededError: there were not so many in time.
        """
        if nbytes > self.limit:
            self.stats.refused += 1
            raise RequestTooLargeError(nbytes, self.limit)
        if self._waiting or self.stats.held + nbytes > self.limit:
            await self._wait(nbytes)
        else:
            self._hold(nbytes)
        self.stats.admitted += 1
        return Share(self, nbytes)

    async def _wait(self, nbytes: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, turn))
        self.stats.waited += 1
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # The share came in the moment in which its owner stopped waiting.
                self._give_back(nbytes)
            else:
                self._serve()
            if isinstance(error, TimeoutError):
                self.stats.refused += 1
                raise BudgetExceededError(nbytes, self.limit) from None
            raise

    def _hold(self, nbytes: int) -> None:
        self.stats.held += nbytes
        self.stats.peak = max(self.stats.peak, self.stats.held)

    def _give_back(self, nbytes: int) -> None:
        self.stats.held -= nbytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            nbytes, turn = self._waiting[0]
            if not turn.cancelled():
                if self.stats.held + nbytes > self.limit:
                    return
                self._hold(nbytes)
                turn.set_result(None)
            self._waiting.popleft()


class Share:
    """Bytes that one request holds. Shares come from `ByteBudget.take`."""

    def __init__(self, budget: ByteBudget, nbytes: int) -> None:
        self._budget = budget
        self.nbytes = nbytes

    def shrink(self, nbytes: int) -> None:
        """So many bytes are enough from now on; never makes it larger."""
        spare = self.nbytes - min(self.nbytes, nbytes)
        self.nbytes -= spare
        if spare:
            self._budget._give_back(spare)

    def release(self) -> None:
        """Give everything back; again changes nothing."""
        self.shrink(0)


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f} MB"
