"""From the text that the target generated to a message: reasoning, content, tool calls.

Three ways of writing calls are known: Hermes (`<tool_call>{"name": …, "arguments": {…}}</tool_call>`; Qwen and our
template), Llama 3 (the whole answer is `{"name": …, "parameters": {…}}`) and Kimi K2 (sections of special tokens).
A call that is not well formed stays in the content as it is, for the checks of generate to find.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from draftmill.target.config import ReasoningTags

_HERMES = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_KIMI_SECTION = re.compile(r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>", re.DOTALL)
_KIMI_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*(?P<id>[^<\s]+)\s*<\|tool_call_argument_begin\|>(?P<arguments>.*?)<\|tool_call_end\|>",
    re.DOTALL,
)


def parse_answer(text: str, reasoning: ReasoningTags | None, tool_calls: str) -> dict[str, Any]:
    """The assistant message of a generated text without its end token.

    Returns {"role": "assistant", "content": str} and, where there are any, "reasoning" and "tool_calls".
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        thought, message["content"] = _split_reasoning(text, reasoning)
        if thought:
            message["reasoning"] = thought
    calls, rest = _FORMS[tool_calls](message["content"])
    if calls:
        message |= {"content": rest, "tool_calls": calls}
    return message


def _split_reasoning(text: str, tags: ReasoningTags) -> tuple[str, str]:
    """Reasoning and the rest. The opening tag may stand in the prompt already, so only the closing one counts."""
    thought, close, rest = text.partition(tags.close)
    if not close:
        return "", text
    return thought.removeprefix(tags.open).strip("\n"), rest.lstrip("\n")


def _hermes(text: str) -> tuple[list[dict[str, Any]], str]:
    calls = [_call(body, "arguments") for body in _HERMES.findall(text)]
    if not calls or None in calls:
        return [], text
    return _numbered(calls), _HERMES.sub("", text).rstrip("\n")


def _llama3(text: str) -> tuple[list[dict[str, Any]], str]:
    call = _call(text.removeprefix("<|python_tag|>").strip(), "parameters")
    return (_numbered([call]), "") if call else ([], text)


def _kimi(text: str) -> tuple[list[dict[str, Any]], str]:
    found = [match for section in _KIMI_SECTION.findall(text) for match in _KIMI_CALL.finditer(section)]
    calls = [
        _function(match["id"].rpartition(":")[0].removeprefix("functions."), match["arguments"], match["id"])
        for match in found
    ]
    return (calls, _KIMI_SECTION.sub("", text)) if calls else ([], text)


_FORMS = {"hermes": _hermes, "llama3": _llama3, "kimi": _kimi, "none": lambda text: ([], text)}


def _call(body: str, key: str) -> tuple[str, object] | None:
    """Name and arguments of a call written as a JSON object, or None if it is none."""
    try:
        loaded = json.loads(body)
    except ValueError:
        return None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("name"), str):
        return None
    return loaded["name"], loaded.get(key, {})


def _numbered(calls: list[Any]) -> list[dict[str, Any]]:
    return [_function(name, arguments, f"call_{index}") for index, (name, arguments) in enumerate(calls)]


def _function(name: str, arguments: object, identity: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        arguments = next(_objects(arguments), arguments)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _objects(text: str) -> Iterator[dict[str, Any]]:
    try:
        loaded = json.loads(text)
    except ValueError:
        return
    if isinstance(loaded, dict):
        yield loaded
