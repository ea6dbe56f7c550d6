"""The one client for all HTTP engines: retries, several servers, adaptive concurrency, clear ends.

What happens to a question that is not answered at once:
- connection errors, timeouts, 408, 409, 425, 429, 5xx, and bodies that are not the protocol's are asked
  again, after a wait drawn from zero up to a bound that doubles (full jitter), or after Retry-After;
- another 4xx ends that row with the server's words;
- 401, 402, 403, 404, 405 end the run at once: the next thousand questions would fare no better. So do
  `HOPELESS` refusals without one answer, if a harmless question is refused as well.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import random
import resource
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self

import aiohttp
import orjson

from draftmill.console import excerpt
from draftmill.errors import BuildError, ConfigError
from draftmill.generate.gate import Gate
from draftmill.generate.pool import Pool, Server
from draftmill.generate.preflight import ABSENT, TIMEOUT, Wanted, inspect
from draftmill.generate.protocols import BadAnswer, Wire
from draftmill.generate.request import Answer, Request, RowError
from draftmill.generate.settings import Engine, GenerateRun

HOPELESS = 20
_AGAIN = {408, 409, 425, 429}
_OVERLOAD = {429, 503, 529}
_LONGEST_RETRY_AFTER_SECONDS = 600.0
_REMEMBERED_IDS = 8192
_SPARE_FILES = 64


class Again(Exception):
    """This attempt came to nothing; `kind` is its counter, `after_s` what the server asked to wait."""

    def __init__(self, kind: str, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.kind, self.after_s = kind, after_s


class Http:
    """Servers that answer over HTTP, as one engine.

    Args:
        urls: finds the servers when the session begins (and launches one, if that is configured).
        beat: runs while the session does; it tells a launched server's supervisor that it is in use.
        target: what each server must serve; another model or a shorter context is an error at once.
    """

    def __init__(
        self,
        wire: Wire,
        urls: Callable[[], Awaitable[tuple[str, ...]]],
        engine: Engine,
        run: GenerateRun,
        target: Wanted,
        beat: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.concurrency = run.concurrency
        self.retries: Counter[str] = Counter()
        self.requests = 0
        self._wire, self._urls, self._engine, self._run, self._target = wire, urls, engine, run, target
        self._beat = beat
        self._key: str | None = None
        self._beating: asyncio.Task[None] | None = None
        self._answered = self._refused = 0
        self._seen: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._seen_ids: set[str] = set()

    async def __aenter__(self) -> Self:
        _require_files(self.concurrency)
        self._key = api_key(self._engine)
        run = self._run
        urls = await self._urls()
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=run.timeout_s, sock_connect=10),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
        )
        try:
            self._gate = Gate(run.concurrency)
            servers = [Server(url=url.rstrip("/"), path=self._wire.path) for url in urls]
            self._pool = Pool(servers, self._healthy, run.patience_s)
            await inspect(self._http, self._wire, self._engine, self._pool, self._target)
        except BaseException:
            await self._http.close()
            raise
        self._beating = asyncio.create_task(self._beat()) if self._beat else None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beating:
            self._beating.cancel()
        await self._pool.close()
        await self._http.close()
        await asyncio.sleep(0)  # the connections close in the loop's next round

    def line(self) -> str:
        """Requests in flight, servers that are up, and retries by kind."""
        if not self.requests:
            return ""
        up = sum(server.up for server in self._pool.servers)
        parts = [f"{self._gate.in_flight} in flight"]
        parts += [f"{up}/{len(self._pool.servers)} servers"] if len(self._pool.servers) > 1 else []
        parts += [f"{kind} {count}" for kind, count in sorted(self.retries.items())]
        return ", ".join(parts)

    def figures(self) -> dict[str, object]:
        """Requests sent, and retries by kind."""
        return {"requests": self.requests, "retries": dict(sorted(self.retries.items()))}

    async def ask(self, request: Request) -> Answer:
        """The target's answer. Raises RowError (`refused`, `invalid`, `failed`), or BuildError to end the run."""
        last = Again("failed", "not asked")
        for attempt in range(self._run.attempts):
            try:
                if not self._gate.enter():
                    await self._gate.turn()
                try:
                    answer = await self._once(request, f"{request.key}-{attempt}")
                finally:
                    self._gate.leave()
            except RowError as refusal:
                await self._doubt(request, str(refusal))
                raise
            except Again as again:
                last = again
                self.retries[again.kind] += 1
                if again.kind == "invalid":
                    await self._doubt(request, str(again))
                bound = min(self._run.backoff_max_s, self._run.backoff_s * 2**attempt)
                await asyncio.sleep(max(again.after_s, random.uniform(0, bound)))
            else:
                self._gate.well()
                self._answered += 1
                return answer
        if last.kind != "invalid":
            await self._doubt(request, str(last))
        raise RowError("invalid" if last.kind == "invalid" else "failed", f"{last.kind}: {last}")

    async def _once(self, request: Request, name: str) -> Answer:
        server = self._pool.ready() or await self._pool.choose()
        body = orjson.dumps(self._wire.payload(request, name, server.model))
        self.requests += 1
        server.outstanding += 1
        try:
            async with self._http.post(server.question, data=body) as response:
                content = await self._body(response)
        except TimeoutError:
            raise Again("timeout", f"{server.url} gave no answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            self._pool.failed(server, refused=isinstance(error, aiohttp.ClientConnectorError))
            raise Again("connection", f"{server.url}: {type(error).__name__}") from None
        finally:
            server.outstanding -= 1
        self._pool.well(server)
        if response.status != 200:
            raise self._refusal(response.status, response.headers.get("Retry-After"), content, server)
        return self._read(request, name, content, server)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, which a server that has begun to answer has ready: a rest that does not come is a stall."""
        if response.content.is_eof():
            return await response.read()
        async with asyncio.timeout(self._run.stall_timeout_s):
            return await response.read()

    def _read(self, request: Request, name: str, content: bytes, server: Server) -> Answer:
        try:
            body = orjson.loads(content)
            if not isinstance(body, dict):
                raise BadAnswer("the body is not an object")
            if body.get("error"):
                raise self._refusal(_error_code(body["error"]), None, content, server)
            if self._is_double(body.get("id")):
                raise BadAnswer("an answer came back twice")
            return self._wire.answer(request, name, body)
        except (orjson.JSONDecodeError, BadAnswer) as error:
            raise Again("invalid", f"{server.url}: {error}") from None

    def _refusal(self, status: int, retry_after: str | None, content: bytes, server: Server) -> Exception:
        """The exception that fits a status other than 200."""
        words = self._scrubbed(_words(content))
        if status in _AGAIN or status >= 500:
            wait = seconds_of(retry_after)
            if status in _OVERLOAD:
                self._gate.overloaded()
                server.free_at = max(server.free_at, time.monotonic() + wait)
            return Again(f"http_{status}", f"{server.url}: {status} {words}", wait)
        flagged = status == 403 and b"moderation" in content.lower()
        if status in (401, 402, 403, 404, 405) and not flagged:
            return _fatal(status, words, server, self._wire, self._engine)
        return RowError("refused", f"{status} {words}")

    async def _doubt(self, request: Request, words: str) -> None:
        """Nothing but refusals (or bodies of another protocol) from the start is a fault of the run, not of rows.

        A harmless question decides: rows that are all refused may also be what an earlier run left over.
        """
        self._refused += 1
        if self._answered or self._refused != HOPELESS:
            return
        hello = [{"role": "user", "content": "Hello"}]
        try:
            await self._once(Request(key="0" * 32, limit=1, prompt_ids=request.prompt_ids[:2], messages=hello), "hello")
            self._answered += 1
        except (Again, RowError):
            raise BuildError(
                f"the first {HOPELESS} questions were all refused",
                found=self._scrubbed(words),
                fix="see to the engine's configuration and the server's log",
            ) from None

    def _is_double(self, identity: Any) -> bool:
        if not isinstance(identity, str):
            return False
        if identity in self._seen_ids:
            return True
        if len(self._seen) == _REMEMBERED_IDS:
            self._seen_ids.discard(self._seen[0])
        self._seen.append(identity)
        self._seen_ids.add(identity)
        return False

    async def _healthy(self, server: Server) -> bool:
        try:
            async with self._http.get(server.url + self._wire.looks[0], timeout=TIMEOUT) as response:
                return response.status not in ABSENT
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    def _scrubbed(self, text: str) -> str:
        """Servers quote the key they refuse; messages must not."""
        return text.replace(self._key, "***") if self._key else text


def api_key(engine: Engine) -> str | None:
    """The key from the environment. Raises ConfigError that names the variable, never its value."""
    if engine.api_key_env is None:
        return None
    key = os.environ.get(engine.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"the environment variable {engine.api_key_env} is not set",
            key="engine.api_key_env",
            fix=f"export {engine.api_key_env}=…",
        )
    return key


def seconds_of(retry_after: str | None) -> float:
    """Seconds of a Retry-After header (RFC 9110: a number, or a date), at most ten minutes; 0 if it says nothing."""
    if not retry_after:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER_SECONDS)


def _words(content: bytes) -> str:
    """The server's message, wherever its JSON keeps it."""
    try:
        body: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        return excerpt(content.decode("utf-8", "replace"), 200)
    while isinstance(body, dict):
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), str(body))
    return excerpt(str(body), 200)


def _error_code(error: Any) -> int:
    """OpenRouter reports errors of providers in a body of status 200."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and code >= 400 else 502


def _fatal(status: int, words: str, server: Server, wire: Wire, engine: Engine) -> BuildError:
    found = f"{status} from {server.url}{wire.path}: {words}"
    if status in (401, 403):
        fix = (
            f"check the key in {engine.api_key_env}" if engine.api_key_env else "name its variable: engine.api_key_env"
        )
        return BuildError("the server does not accept the API key", key="engine.api_key_env", found=found, fix=fix)
    if status == 402:
        return BuildError("the account has no credit left", found=found, fix="add credit, then run again")
    fix = f"is this a server for engine '{engine.name}', and its model name right?"
    return BuildError("the server knows no such model or address", key="engine", found=found, fix=fix)


def _require_files(concurrency: int) -> None:
    """A connection is an open file; the soft limit may be raised up to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = concurrency + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        if hard != resource.RLIM_INFINITY and hard < need:
            raise ConfigError(
                f"{concurrency} requests in flight need {need} open files; the limit is {hard}",
                key="run.generate.concurrency",
                fix=f"at most {hard - _SPARE_FILES}, or raise the limit: ulimit -n {need}",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
