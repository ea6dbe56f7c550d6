"""Leads rows through their conversations: each question from the store, or asked once and stored.

    session = Session(asker, store, meter)
    asyncio.run(session.lead(rows))           # rows: an iterable of `converse` generators
    session.stopped, session.failures, session.counts

Rows are taken lazily; at most `asker.concurrency` are in flight, so memory does not grow with their number.
A question that two rows share is asked once. Interrupted once, the session stops asking, gives what is in
flight ten seconds, and commits.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import AsyncExitStack, suppress

from draftmill.generate.converse import Told
from draftmill.generate.engines import Asker
from draftmill.generate.meter import Meter
from draftmill.generate.request import Answer, Request, RowError
from draftmill.generate.store import COMMIT_SECONDS, Store

GRACE_SECONDS = 10.0
Row = Generator[Request, Answer, Told]


class Session:
    """One pass over rows.

    Attributes:
        counts: `asked`, `reused`, and `failed:<reason>` for questions without an answer.
        failures: key of each question that got no answer, with its RowError; never stored, asked again next time.
        rows: how many rows were led to their end.
        stopped: why asking ended early (`interrupted`, or a budget), else None.
    """

    def __init__(self, asker: Asker, store: Store, meter: Meter) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, RowError] = {}
        self.stopped: str | None = None
        self.rows = 0
        self._asker, self._store, self._meter = asker, store, meter
        self._asking: dict[str, asyncio.Future[None] | None] = {}

    async def lead(self, rows: Iterable[Row]) -> None:
        """Ask whatever is missing. Raises the DraftmillError of an engine that cannot go on, after a commit."""
        waiting, self._opened, self._opening = iter(rows), False, asyncio.Lock()
        async with AsyncExitStack() as self._stack:
            workers = [asyncio.create_task(self._work(waiting)) for _ in range(self._asker.concurrency)]
            ticker = asyncio.create_task(self._tick())
            self._on_interrupt(workers)
            try:
                await asyncio.gather(*workers)
            finally:
                for task in (*workers, ticker):
                    task.cancel()
                await asyncio.gather(*workers, ticker, return_exceptions=True)
                self._store.commit()

    async def _work(self, rows: Iterator[Row]) -> None:
        for row in rows:
            asked = self.counts["asked"]
            try:
                await self._follow(row)
            except RowError:
                pass  # counted where it arose; the assembly gives the row its reason
            except Stopped:
                return
            self.rows += 1
            self._meter.row_done()
            if self.stopped:
                return
            if self.counts["asked"] == asked:
                await asyncio.sleep(0)  # rows that are all in the store must not keep signals and timers waiting

    async def _follow(self, row: Row) -> Told:
        try:
            request = next(row)
            while True:
                try:
                    answer = await self._answer(request)
                except RowError as error:
                    request = row.throw(error)
                else:
                    request = row.send(answer)
        except StopIteration as told:
            return told.value

    async def _answer(self, request: Request) -> Answer:
        """From the store, from a row that is asking the same, or from the engine."""
        while (answer := self._store.get(request.key, request.limit)) is None:
            if request.key in self.failures:
                raise self.failures[request.key]
            if request.key not in self._asking:
                return await self._ask(request)
            # Most questions are nobody else's, so the future is made by the first row that waits.
            asking = self._asking[request.key] or asyncio.get_running_loop().create_future()
            self._asking[request.key] = asking
            await asyncio.wait([asking])
        self.counts["reused"] += 1
        return answer

    async def _open(self) -> None:
        """Enter the engine at the first question: where all is in the store, no server and no weights are needed."""
        async with self._opening:
            if not self._opened:
                await self._stack.enter_async_context(self._asker)
                self._opened = True

    async def _ask(self, request: Request) -> Answer:
        self.stopped = self.stopped or self._meter.exhausted()
        if self.stopped:
            raise Stopped
        if not self._opened:
            await self._open()
            return await self._answer(request)  # another row may have asked the same meanwhile
        self._asking[request.key] = None
        answer: Answer | None = None
        self._meter.asked(request)
        try:
            answer = await self._asker.ask(request)
        except RowError as error:
            self.failures[request.key] = error
            self.counts[f"failed:{error.reason}"] += 1
            self._meter.errors[error.reason] += 1
            raise
        else:
            self._store.put(request.key, answer)
            self.counts["asked"] += 1
            return answer
        finally:
            self._meter.ended(request, answer)
            if asking := self._asking.pop(request.key):
                asking.set_result(None)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS / 2)
            self._store.tick()

    def _on_interrupt(self, workers: list[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            for worker in workers:
                worker.cancel()

        def interrupted() -> None:
            if self.stopped == "interrupted":
                cancel()
            self.stopped = "interrupted"
            loop.call_later(GRACE_SECONDS, cancel)

        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread: no handler
            loop.add_signal_handler(signal.SIGINT, interrupted)


class Stopped(Exception):
    """The session stopped while a row was under way; the row stays unanswered."""


def run(session: Session, rows: Iterable[Row]) -> float:
    """`session.lead(rows)` in an event loop of its own; returns seconds. Raises KeyboardInterrupt if interrupted."""
    started = time.monotonic()
    try:
        asyncio.run(session.lead(rows))
    except asyncio.CancelledError:
        if session.stopped is None:
            raise
    if session.stopped == "interrupted":
        raise KeyboardInterrupt
    return time.monotonic() - started
