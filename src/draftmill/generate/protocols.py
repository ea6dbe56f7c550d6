"""How SGLang, vLLM and chat endpoints are spoken to: a request as their JSON, their JSON as an answer.

The fields are those of SGLang 0.5 (/generate), vLLM 0.2x (/v1/completions with `return_token_ids`), and
OpenAI's chat completions with OpenRouter's additions (`provider`, `reasoning`, `usage.cost`).
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import orjson

from draftmill.generate.dialogue import Message
from draftmill.generate.request import Answer, Finish, Request
from draftmill.generate.settings import Engine, Sampling


class BadAnswer(Exception):
    """The body is not what the protocol says: asked again."""


class Wire(Protocol):
    """One protocol."""

    path: str
    """Of the question, below the server's URL."""
    looks: tuple[str, ...]
    """Cheap GETs that tell what the server is, the newest first: older servers do not know it."""

    def payload(self, request: Request, name: str, model: str | None) -> dict[str, Any]:
        """The body of the question; `name` comes back in the answer where the protocol has room for it."""
        ...

    def answer(self, request: Request, name: str, body: dict[str, Any]) -> Answer:
        """The answer in a body of status 200. Raises BadAnswer."""
        ...


class SGLang:
    """The native /generate with token ids."""

    path = "/generate"
    looks: tuple[str, ...] = ("/model_info", "/get_model_info")

    def __init__(self, sampling: Sampling, eos_ids: tuple[int, ...]) -> None:
        self._eos_ids = eos_ids
        self._drawn: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
            "stop_token_ids": list(eos_ids),
        }
        self._seed = sampling.seed if sampling.temperature else None

    def payload(self, request: Request, name: str, model: str | None) -> dict[str, Any]:
        """`rid` comes back as meta_info.id."""
        drawn = {**self._drawn, "max_new_tokens": request.limit}
        if self._seed is not None:
            drawn["sampling_seed"] = self._seed ^ request.seed
        return {"rid": name, "input_ids": request.prompt_ids, "sampling_params": drawn}

    def answer(self, request: Request, name: str, body: dict[str, Any]) -> Answer:
        """Exact ids; another request's `rid` is a swapped answer."""
        meta = _map(body.get("meta_info"))
        if meta.get("id", name) != name:
            raise BadAnswer("the answer to another question came back")
        reason = _map(meta.get("finish_reason"))
        ids = token_ids(body.get("output_ids"))
        usage = _usage(meta.get("prompt_tokens"), meta.get("completion_tokens"))
        return exact("sglang", request, ids, str(reason.get("type")), body.get("text"), usage, self._eos_ids)


class VLLM:
    """OpenAI's completions with token ids in and out."""

    path = "/v1/completions"
    looks: tuple[str, ...] = ("/v1/models",)

    def __init__(self, sampling: Sampling, eos_ids: tuple[int, ...]) -> None:
        self._eos_ids = eos_ids
        self._drawn: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "add_special_tokens": False,
            "stop_token_ids": list(eos_ids),
            "return_token_ids": True,
        }
        self._seed = sampling.seed if sampling.temperature else None

    def payload(self, request: Request, name: str, model: str | None) -> dict[str, Any]:
        """`request_id` is part of the answer's id."""
        seed = {} if self._seed is None else {"seed": self._seed ^ request.seed}
        asked = {"model": model, "prompt": request.prompt_ids, "max_tokens": request.limit, "request_id": name}
        return {**self._drawn, **asked, **seed}

    def answer(self, request: Request, name: str, body: dict[str, Any]) -> Answer:
        """Exact ids, with the prompt's ids compared to those sent."""
        choice = _first_choice(body)
        returned = choice.get("prompt_token_ids", body.get("prompt_token_ids"))
        if returned is not None and returned != request.prompt_ids:
            raise BadAnswer("the prompt ids that came back are not those that were sent")
        usage = _map(body.get("usage"))
        counts = _usage(usage.get("prompt_tokens"), usage.get("completion_tokens"))
        ids, reason = token_ids(choice.get("token_ids")), str(choice.get("finish_reason"))
        return exact("vllm", request, ids, reason, choice.get("text"), counts, self._eos_ids)


class Chat:
    """Any chat endpoint; OpenRouter's provider pinning, reasoning and cost where the engine names them."""

    path = "/chat/completions"
    looks: tuple[str, ...] = ("/models",)

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        identity = engine.identity
        self._prices = engine.prices
        self._fixed: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.top_k is not None:
            self._fixed["top_k"] = sampling.top_k
        if identity.provider or identity.quantization:
            provider: dict[str, Any] = {"allow_fallbacks": False, "require_parameters": True}
            if identity.provider:
                provider |= {"order": list(identity.provider), "only": list(identity.provider)}
            if identity.quantization:
                provider["quantizations"] = [identity.quantization]
            self._fixed["provider"] = provider
        if identity.reasoning:
            self._fixed["reasoning"] = {"effort": identity.reasoning}
        self._seed = sampling.seed if sampling.temperature else None

    def payload(self, request: Request, name: str, model: str | None) -> dict[str, Any]:
        """The conversation and its tools in OpenAI's form."""
        body = {**self._fixed, "model": model, "messages": [chat_message(m) for m in request.messages]}
        body["max_tokens"] = request.limit
        if self._seed is not None:
            body["seed"] = self._seed ^ request.seed
        return {**body, "tools": request.tools} if request.tools else body

    def answer(self, request: Request, name: str, body: dict[str, Any]) -> Answer:
        """Text only: the ids are rebuilt by tokenize."""
        choice = _first_choice(body)
        reason = choice.get("finish_reason")
        finish: Finish
        if reason in ("stop", "tool_calls", "function_call"):
            finish = "stop"
        elif reason == "length":
            finish = "length"
        elif reason == "content_filter":
            finish = "refused"
        else:
            raise BadAnswer(f"finish_reason {reason!r}")
        message = own_message(_map(choice.get("message")))
        provider = body.get("provider")
        engine = f"openai:{provider}" if isinstance(provider, str) else "openai"
        usage = self._priced(_map(body.get("usage")))
        return Answer(finish=finish, limit=request.limit, engine=engine, message=message, usage=usage)

    def _priced(self, usage: dict[str, Any]) -> dict[str, Any]:
        counts = _usage(usage.get("prompt_tokens"), usage.get("completion_tokens"))
        cost = usage.get("cost")
        if isinstance(cost, int | float) and not isinstance(cost, bool):
            return {**counts, "cost": cost}
        if self._prices is None:
            return counts
        prompt, completion = counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
        return {**counts, "cost": (prompt * self._prices.prompt + completion * self._prices.completion) / 1e6}


def exact(
    engine: str,
    request: Request,
    ids: list[int],
    reason: str,
    text: Any,
    usage: dict[str, Any],
    eos_ids: tuple[int, ...],
) -> Answer:
    """An answer with ids. Raises BadAnswer without a text, for an unknown reason to finish, or ids beyond the limit."""
    if not isinstance(text, str):
        raise BadAnswer("no text in the answer")
    if reason not in ("stop", "length"):
        raise BadAnswer(f"finish_reason {reason!r}")
    if len(ids) > request.limit:
        raise BadAnswer(f"{len(ids)} tokens came back where at most {request.limit} were asked for")
    finish: Finish = "length" if reason == "length" and not (ids and ids[-1] in eos_ids) else "stop"
    return Answer(finish=finish, limit=request.limit, engine=engine, output_ids=ids, text=text, usage=usage)


def token_ids(value: Any) -> list[int]:
    """A list of token ids. Raises BadAnswer."""
    if not isinstance(value, list):
        raise BadAnswer("no token ids in the answer")
    try:
        array("i", value)  # many times faster than a look at each of hundreds of ids
    except (TypeError, OverflowError):
        raise BadAnswer("no token ids in the answer") from None
    if value and min(value) < 0:
        raise BadAnswer("a token id below zero")
    return value


def chat_message(message: Message) -> dict[str, Any]:
    """A message as chat endpoints want it: arguments as JSON text, no keys of ours."""
    sent = {key: value for key, value in message.items() if key != "flag"}
    if message.get("tool_calls"):
        sent["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _argument_text(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
        sent["content"] = message.get("content") or None
    return sent


def own_message(message: dict[str, Any]) -> Message:
    """A chat endpoint's message in the form of a `conversation` column. Raises BadAnswer."""
    content, thought = message.get("content"), message.get("reasoning") or message.get("reasoning_content")
    if not isinstance(content, str | None) or not isinstance(thought, str | None):
        raise BadAnswer("content is not text")
    own: Message = {"role": "assistant", "content": content or ""}
    if thought:
        own["reasoning"] = thought
    if message.get("tool_calls"):
        own["tool_calls"] = [_own_call(index, call) for index, call in enumerate(message["tool_calls"])]
    return own


def _own_call(index: int, call: Any) -> dict[str, Any]:
    function = _map(_map(call).get("function"))
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str):
        raise BadAnswer("a tool call without a name")
    if isinstance(arguments, str):
        try:
            loaded = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            loaded = None
        arguments = loaded if isinstance(loaded, dict) else arguments
    identity = call.get("id") or f"call_{index}"
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _argument_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _first_choice(body: dict[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise BadAnswer("no choices in the answer")
    return _map(choices[0])


def _map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer("the answer has not the form that this protocol gives it")
    return value


def _usage(prompt: Any, completion: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {name: count for name, count in counts.items() if type(count) is int}
