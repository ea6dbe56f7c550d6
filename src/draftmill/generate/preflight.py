"""The first look at each server, before any question: is it there, does it speak our protocol, what does it serve?"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson

from draftmill.errors import BuildError, nearest
from draftmill.generate.pool import Pool, Server
from draftmill.generate.protocols import SGLang, Wire
from draftmill.generate.settings import Engine

TIMEOUT = aiohttp.ClientTimeout(total=10)


async def inspect(http: aiohttp.ClientSession, wire: Wire, engine: Engine, pool: Pool, need_len: int) -> None:
    """Look at every server; those that are not there are taken out.

    Raises BuildError if none is there, if one speaks another protocol, serves another model, or has a
    context shorter than `need_len` tokens.
    """
    looks = await asyncio.gather(*(_look(http, wire, engine, server, need_len) for server in pool.servers))
    if not any(looks):
        urls = ", ".join(server.url for server in pool.servers)
        raise BuildError(
            f"no server answers at {urls}", key="run.generate.urls", fix="start it, or correct the address"
        )
    for server, there in zip(pool.servers, looks, strict=True):
        if not there:
            pool.take_out(server)


async def _look(http: aiohttp.ClientSession, wire: Wire, engine: Engine, server: Server, need_len: int) -> bool:
    for path in wire.looks:
        try:
            async with http.get(server.url + path, timeout=TIMEOUT) as response:
                status, content = response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False
        if status != 404:
            break
    if status >= 500:
        return False
    if status in (401, 403):
        raise BuildError(
            "the server does not accept the API key",
            key="engine.api_key_env",
            found=f"{status} from {server.url}{path}",
        )
    body = _json(content)
    if isinstance(wire, SGLang):
        _check_sglang(status, body, server)
    else:
        _check_models(status, body, engine, server, need_len)
    return True


def _check_sglang(status: int, body: Any, server: Server) -> None:
    if status != 200 or not isinstance(body, dict) or "model_path" not in body:
        raise _other_protocol("SGLang's /generate", server)


def _check_models(status: int, body: Any, engine: Engine, server: Server, need_len: int) -> None:
    """vLLM and chat endpoints list what they serve; a chat endpoint without a list is believed."""
    models = body.get("data") if status == 200 and isinstance(body, dict) else None
    if not isinstance(models, list) or not models:
        if engine.name == "openai":
            server.model = engine.identity.model
            return
        raise _other_protocol("vLLM's completions", server)
    served = {model["id"]: model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)}
    server.model = engine.identity.model or next(iter(served), None)
    if server.model not in served:
        close = nearest(str(server.model), served)
        raise BuildError(
            f"{server.url} does not serve '{server.model}'",
            key="engine.identity.model",
            found=", ".join(sorted(served)[:5]) + (", …" if len(served) > 5 else ""),
            fix=f"did you mean '{close}'?" if close else None,
        )
    length = served[server.model].get("max_model_len")
    if type(length) is int and length < need_len:
        raise BuildError(
            f"the server's context is {length} tokens, the target's {need_len}",
            key="target.max_seq_len",
            found=server.url,
            fix=f"start the server with at least {need_len}, or set target.max_seq_len: {length}",
        )


def _other_protocol(wanted: str, server: Server) -> BuildError:
    return BuildError(
        f"{server.url} does not speak {wanted}",
        key="run.generate.urls",
        fix="correct the address, or choose another engine",
    )


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
