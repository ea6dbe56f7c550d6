"""How many requests may be in flight: doubled quickly at the start, halved on overload, raised slowly after.

The start is counted in time, not in answers: an answer may take minutes, while a server that refuses
everything says so within milliseconds, so that few requests are wasted on it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

START, RAMP_SECONDS = 16, 0.1
# All requests of one overload report it; they count once.
HALVE_SECONDS = 1.0


class Gate:
    """Around a request: `if not gate.enter(): await gate.turn()`, then `gate.leave()`.

    Two steps, because a coroutine for each request that need not wait costs more than the rest of this class.
    `well` and `overloaded` tell how requests end.
    """

    def __init__(self, most: int) -> None:
        self.most, self.limit = most, float(min(most, START))
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._halved = 0.0
        self._ramp: asyncio.TimerHandle | None = None
        self._starting = self.limit < most

    def enter(self) -> bool:
        """Whether there is room now; if so, it is taken."""
        if self._starting and self._ramp is None:
            self._ramp = asyncio.get_running_loop().call_later(RAMP_SECONDS, self._double)
        if self.in_flight < self.limit and not self._waiting:
            self.in_flight += 1
            return True
        return False

    async def turn(self) -> None:
        """Wait for room, first come first served; it is taken then."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """The request has ended, well or not."""
        self.in_flight -= 1
        self._wake()

    def well(self) -> None:
        """A request was answered: one more in flight for each round of answers."""
        if not self._starting and self.limit < self.most:
            self.limit = min(self.most, self.limit + 1 / self.limit)

    def overloaded(self) -> None:
        """A server said that it has too much to do."""
        now = time.monotonic()
        self._starting = False
        if now - self._halved >= HALVE_SECONDS:
            self._halved = now
            self.limit = max(1.0, self.limit / 2)

    def _wake(self) -> None:
        while self._waiting and self.in_flight < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)

    def _double(self) -> None:
        self._ramp = None
        if self._starting:
            self.limit = min(self.most, self.limit * 2)
            self._starting = self.limit < self.most
            self._wake()
            if self._starting:
                self._ramp = asyncio.get_running_loop().call_later(RAMP_SECONDS, self._double)
