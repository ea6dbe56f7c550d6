"""A server on real sockets that speaks SGLang's, vLLM's and OpenAI's protocols, and misbehaves on request.

    with Loopback(faults=lambda digest, attempt: "500" if attempt == 0 else None) as server:
        … server.url, server.requests, server.asked[digest] …

Answers depend on the prompt alone. `faults` sees the digest of the prompt and how often it was asked before,
and names what goes wrong this time (the keys of `_FAULTS`, or `wrong_usage`, `double`, `swap`), or None.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import random
import threading
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

EOS = 2
Fault = Callable[[str, int], str | None]


def prompt_digest(body: dict[str, Any]) -> str:
    """Of whatever the question is: ids, or messages and tools."""
    prompt = body.get("input_ids") or body.get("prompt") or [body.get("messages"), body.get("tools")]
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:16]


def answer_ids(digest: str, limit: int, longest: int = 40, eos: int = EOS) -> tuple[list[int], str]:
    """(ids, finish reason) that the server gives to a prompt."""
    draw = random.Random(digest)
    ids = [draw.randrange(97, 123) for _ in range(draw.randrange(1, longest))] + [eos]
    return (ids, "stop") if len(ids) <= limit else (ids[:limit], "length")


class Loopback:
    """The server, in a thread with a loop of its own.

    Attributes:
        requests: questions received, answered well or not.
        asked: times each prompt was asked, by digest.
        served: times each prompt was answered well.
        headers: of the last question.
        in_flight, most_in_flight: at a time.
    """

    def __init__(
        self,
        faults: Fault = lambda digest, attempt: None,
        *,
        port: int = 0,
        delay_s: float = 0.0,
        key: str | None = None,
        models: tuple[str, ...] = ("tiny",),
        context: int = 1 << 20,
        speaks: tuple[str, ...] = ("sglang", "vllm", "openai"),
        chat: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        provider: str | None = None,
        longest: int = 40,
        eos: int = EOS,
        info_path: str = "/model_info",
        list_status: int = 200,
    ) -> None:
        self._faults, self._port, self._delay_s, self._key = faults, port, delay_s, key
        self._models, self._context, self._speaks = models, context, speaks
        self._chat, self._provider, self._longest = chat, provider, longest
        self._eos, self._info_path, self._list_status = eos, info_path, list_status
        self.requests = self.in_flight = self.most_in_flight = self._count = 0
        self.asked: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.bodies: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)
        with warnings.catch_warnings():  # sockets that this side had no time to close say so when they are collected
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        routes: dict[str, list[tuple[str, str, Any]]] = {
            "sglang": [("GET", self._info_path, self._info), ("POST", "/generate", self._question("sglang"))],
            "vllm": [("GET", "/v1/models", self._list), ("POST", "/v1/completions", self._question("vllm"))],
            "openai": [("GET", "/models", self._list), ("POST", "/chat/completions", self._question("openai"))],
        }
        app.router.add_get("/health", self._info)
        for name in self._speaks:
            for method, path, handler in routes[name]:
                app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port, backlog=4096)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        await site.stop()
        await asyncio.sleep(0.02)  # what was accepted just now becomes a connection, which cleanup closes
        await runner.cleanup()
        await asyncio.sleep(0.02)  # aborted connections close in the loop's next rounds

    async def _info(self, request: web.Request) -> web.Response:
        return self._refused(request) or web.json_response({"model_path": self._models[0]})

    async def _list(self, request: web.Request) -> web.Response:
        data = [{"id": name, "max_model_len": self._context} for name in self._models]
        return self._refused(request) or web.json_response({"object": "list", "data": data}, status=self._list_status)

    def _refused(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if self._key is None or given == f"Bearer {self._key}":
            return None
        # Real services quote the key that they refuse.
        return web.json_response({"error": {"message": f"Incorrect API key provided: {given}"}}, status=401)

    def _question(self, protocol: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                return await self._handle(protocol, request)
            finally:
                self.in_flight -= 1

        return handle

    async def _handle(self, protocol: str, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests += 1
        self.headers = dict(request.headers)
        self.bodies.append(body)
        digest = prompt_digest(body)
        attempt = self.asked[digest]
        self.asked[digest] += 1
        if refused := self._refused(request):
            return refused
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        fault = self._faults(digest, attempt)
        self._count += 1
        good = getattr(self, f"_{protocol}")(body, digest, f"{protocol}-{self._count}")
        if fault is None or fault == "wrong_usage":
            self.served[digest] += 1
            self._last = good
            return web.json_response(_with_wrong_usage(good) if fault else good)
        if fault == "double":  # the last good answer, once more, in the place of this one
            return web.json_response(self._last or {})
        if fault == "swap":
            return web.json_response(getattr(self, f"_{protocol}")(_other(body), "0" * 16, "other"))
        return await _FAULTS[fault](request, json.dumps(good).encode())

    def _sglang(self, body: dict[str, Any], digest: str, number: str) -> dict[str, Any]:
        ids, reason = answer_ids(digest, body["sampling_params"]["max_new_tokens"], self._longest, self._eos)
        meta = {
            "id": body.get("rid", number),
            "finish_reason": {"type": reason, "matched": self._eos}
            if reason == "stop"
            else {"type": reason, "length": len(ids)},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
        }
        return {"text": _text(ids), "output_ids": ids, "meta_info": meta}

    def _vllm(self, body: dict[str, Any], digest: str, number: str) -> dict[str, Any]:
        ids, reason = answer_ids(digest, body["max_tokens"], self._longest, self._eos)
        choice = {"index": 0, "text": _text(ids), "finish_reason": reason}
        choice |= {"token_ids": ids, "prompt_token_ids": body["prompt"]}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return {"id": f"cmpl-{number}", "object": "text_completion", "choices": [choice], "usage": usage}

    def _openai(self, body: dict[str, Any], digest: str, number: str) -> dict[str, Any]:
        ids, reason = answer_ids(digest, body["max_tokens"], self._longest, self._eos)
        message = self._chat(body) if self._chat else {"role": "assistant", "content": _text(ids)}
        usage = {"prompt_tokens": 7, "completion_tokens": len(ids), "cost": 0.001}
        answer = {"id": f"gen-{number}", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}
        return {**answer, "usage": usage} | ({"provider": self._provider} if self._provider else {})


def _text(ids: list[int]) -> str:
    return "".join(chr(i) for i in ids if 32 <= i < 127)


def _other(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "rid": "somebody-else", "prompt": [1, 2, 3], "input_ids": [1, 2, 3]}


def _with_wrong_usage(good: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(good))
    (changed.get("meta_info") or changed["usage"])["completion_tokens"] = 9999
    return changed


def _status(status: int, **headers: str) -> Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]:
    async def fail(request: web.Request, good: bytes) -> web.StreamResponse:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"error": {"message": f"told to say {status}"}}, status=status, headers=shown)

    return fail


async def _reset(request: web.Request, good: bytes) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _half(request: web.Request, good: bytes, stall_s: float = 0.0) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(good)), "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(good[: len(good) // 2])
    await asyncio.sleep(stall_s)
    assert request.transport is not None
    request.transport.abort()
    return response


async def _stall(request: web.Request, good: bytes) -> web.StreamResponse:
    return await _half(request, good, stall_s=30.0)


async def _silent(request: web.Request, good: bytes) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response(body=good)


async def _invalid(request: web.Request, good: bytes) -> web.StreamResponse:
    return web.Response(body=good[:-7], content_type="application/json")


async def _foreign(request: web.Request, good: bytes) -> web.StreamResponse:
    return web.json_response({"hello": "world"})


async def _error_in_200(request: web.Request, good: bytes) -> web.StreamResponse:
    return web.json_response({"error": {"code": 502, "message": "the provider is gone"}})


_FAULTS = {
    "429": _status(429),
    "429_after": _status(429, Retry_After="0.3"),
    "400": _status(400),
    "401": _status(401),
    "403": _status(403),
    "404": _status(404),
    "500": _status(500),
    "503": _status(503),
    "reset": _reset,
    "half": _half,
    "stall": _stall,
    "silent": _silent,
    "invalid": _invalid,
    "foreign": _foreign,
    "error_in_200": _error_in_200,
}
