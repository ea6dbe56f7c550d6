"""The servers that share the work: least outstanding first; one that fails is taken out and probed back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field

from yarl import URL

from draftmill.console import say
from draftmill.errors import BuildError

# Broken connections in a row that take a server out; one alone may be bad luck.
FAILURES_DOWN = 3
PROBE_FIRST_SECONDS, PROBE_MOST_SECONDS = 0.2, 15.0


@dataclass(kw_only=True, slots=True, eq=False)
class Server:
    """One endpoint and what is known of it."""

    url: str
    question: URL = field(init=False)
    """`url` with the protocol's path: parsed once."""
    path: InitVar[str] = ""
    model: str | None = None
    """The name it serves the target under, where the protocol wants one."""
    up: bool = True
    outstanding: int = 0
    failures: int = 0
    free_at: float = 0.0
    """Monotonic time before which it asked to be left alone (Retry-After)."""

    def __post_init__(self, path: str) -> None:
        self.question = URL(self.url + path)


def _outstanding(server: Server) -> int:
    return server.outstanding


class Pool:
    """Chooses a server for each request.

    Args:
        probe: whether a server is healthy again.
        patience_s: how long all servers may be down before the run ends.
    """

    def __init__(
        self, servers: Sequence[Server], probe: Callable[[Server], Awaitable[bool]], patience_s: float
    ) -> None:
        self.servers = list(servers)
        self._probe, self._patience_s = probe, patience_s
        self._back = asyncio.Event()
        self._probing: dict[str, asyncio.Task[None]] = {}

    def ready(self) -> Server | None:
        """The least busy server that is up and wants to be asked."""
        now = time.monotonic()
        ready = [server for server in self.servers if server.up and server.free_at <= now]
        return min(ready, key=_outstanding) if len(ready) > 1 else ready[0] if ready else None

    async def choose(self) -> Server:
        """Wait until there is one. Raises BuildError if none comes back in time."""
        while (server := self.ready()) is None:
            now = time.monotonic()
            waits = [server.free_at - now for server in self.servers if server.up]
            if waits:
                await asyncio.sleep(max(min(waits), 0.01))
            else:
                await self._some_back()
        return server

    def well(self, server: Server) -> None:
        """The server answered."""
        server.failures = 0

    def failed(self, server: Server, *, refused: bool) -> None:
        """A connection broke, or was `refused` outright."""
        server.failures += 1
        if server.up and (refused or server.failures >= FAILURES_DOWN):
            self.take_out(server)

    def take_out(self, server: Server) -> None:
        """Send it nothing until a probe says that it is back."""
        server.up = False
        self._back.clear()
        say(f"generate: {server.url} does not answer; going on with the others, and trying it again")
        self._probing[server.url] = asyncio.create_task(self._bring_back(server))

    async def close(self) -> None:
        """End the probes."""
        for task in self._probing.values():
            task.cancel()
        await asyncio.gather(*self._probing.values(), return_exceptions=True)

    async def _bring_back(self, server: Server) -> None:
        wait = PROBE_FIRST_SECONDS
        while True:
            await asyncio.sleep(wait)
            if await self._probe(server):
                server.up, server.failures = True, 0
                say(f"generate: {server.url} is back")
                self._back.set()
                return
            wait = min(2 * wait, PROBE_MOST_SECONDS)

    async def _some_back(self) -> None:
        try:
            await asyncio.wait_for(self._back.wait(), self._patience_s)
        except TimeoutError:
            urls = ", ".join(server.url for server in self.servers)
            raise BuildError(
                f"no server has answered for {self._patience_s:.0f} s: {urls}",
                key="run.generate.urls",
                fix="start one, then run again: what was answered is kept",
            ) from None
