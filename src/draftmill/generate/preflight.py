"""The first look at each server, before any question: is it there, does it speak our protocol, what does it serve?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from draftmill.errors import BuildError, nearest
from draftmill.generate.pool import Pool, Server
from draftmill.generate.protocols import VLLM, SGLang, Wire
from draftmill.generate.settings import Engine, GenerateRun

if TYPE_CHECKING:
    from draftmill.target import Target

TIMEOUT = aiohttp.ClientTimeout(total=10)
# What a proxy says of a server that is not there, and a server that still loads. A 500 is there: `transformers serve`
# gives it for its list of models where the hub's cache is missing, and answers questions all the same.
ABSENT = (502, 503, 504)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a server must serve: the target under one of its names, with a context of so many tokens at least."""

    names: tuple[str, ...]
    context: int

    def is_named(self, served: Iterable[object]) -> bool:
        """Whether a name or path of the server's is one of ours: the whole, or a part of the path."""
        ours = {name.lower().rpartition("/")[2] for name in self.names}
        parts = (part for name in served if isinstance(name, str) for part in re.split("/|--", name.lower()))
        return not ours.isdisjoint(parts)


def wanted(target: Target, run: GenerateRun) -> Wanted:
    """The target as servers know it: by its name here (launched ones), and by that of its source or by `served_as`."""
    source = target.source
    own = run.served_as or source.hub or source.embedded or (Path(source.path).name if source.path else None)
    return Wanted(names=(target.name, *([own] if own else [])), context=target.max_seq_len)


async def inspect(http: aiohttp.ClientSession, wire: Wire, engine: Engine, pool: Pool, target: Wanted) -> None:
    """Look at every server; those that are not there are taken out.

    Raises BuildError if none is there, if one speaks another protocol, serves another model, or has a
    context shorter than the target's.
    """
    looks = await asyncio.gather(*(_look(http, wire, engine, server, target) for server in pool.servers))
    if not any(looks):
        urls = ", ".join(server.url for server in pool.servers)
        raise BuildError(
            f"no server answers at {urls}", key="run.generate.urls", fix="start it, or correct the address"
        )
    for server, there in zip(pool.servers, looks, strict=True):
        if not there:
            pool.take_out(server)


async def _look(http: aiohttp.ClientSession, wire: Wire, engine: Engine, server: Server, target: Wanted) -> bool:
    for path in wire.looks:
        try:
            async with http.get(server.url + path, timeout=TIMEOUT) as response:
                status, content = response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False
        if status != 404:
            break
    if status in ABSENT:
        return False
    if status in (401, 403):
        raise BuildError(
            "the server does not accept the API key",
            key="engine.api_key_env",
            found=f"{status} from {server.url}{path}",
        )
    body = _json(content)
    if isinstance(wire, SGLang):
        _check_sglang(status, body, server, target)
    elif isinstance(wire, VLLM):
        _check_vllm(status, body, server, target)
    else:
        _check_chat(status, body, engine, server)
    return True


def _check_sglang(status: int, body: Any, server: Server, target: Wanted) -> None:
    if status != 200 or not isinstance(body, dict) or not isinstance(body.get("model_path"), str):
        raise _other_protocol("SGLang's /generate", server)
    if not target.is_named((body["model_path"], body.get("served_model_name"))):
        raise _other_model([body["model_path"]], server, target)


def _check_vllm(status: int, body: Any, server: Server, target: Wanted) -> None:
    served = _listed(status, body)
    if not served:
        raise _other_protocol("vLLM's completions", server)
    server.model = next((name for name, one in served.items() if target.is_named((name, one.get("root")))), None)
    if server.model is None:
        raise _other_model(served, server, target)
    length = served[server.model].get("max_model_len")
    if type(length) is int and length < target.context:
        raise BuildError(
            f"the server's context is {length} tokens, the target's {target.context}",
            key="target.max_seq_len",
            found=server.url,
            fix=f"start the server with at least {target.context}, or set target.max_seq_len: {length}",
        )


def _check_chat(status: int, body: Any, engine: Engine, server: Server) -> None:
    """A chat endpoint without a list of its models is believed."""
    server.model, served = engine.identity.model, _listed(status, body)
    if served and server.model not in served:
        close = nearest(str(server.model), served)
        raise BuildError(
            f"{server.url} does not serve '{server.model}'",
            key="engine.identity.model",
            found=_some(served),
            fix=f"did you mean '{close}'?" if close else None,
        )


def _listed(status: int, body: Any) -> dict[str, dict[str, Any]]:
    """Models by name, in the server's order; empty where the body is no such list."""
    models = body.get("data") if status == 200 and isinstance(body, dict) else None
    if not isinstance(models, list):
        return {}
    return {model["id"]: model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)}


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:5]) + (", …" if len(shown) > 5 else "")


def _other_model(served: Iterable[str], server: Server, target: Wanted) -> BuildError:
    return BuildError(
        f"{server.url} serves another model than the target {target.names[-1]}",
        key="run.generate.urls",
        found=_some(served),
        fix="correct the address; if it is the target under another name, give this name in run.generate.served_as",
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
