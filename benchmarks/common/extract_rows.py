"""Synthetic rows of five shapes that agent and chat datasets have, the same for everybody.

They are as large as rows of published sets of the kind: traces 86 kB, ShareGPT 7 kB, messages of mixed
content 9 kB, conversations with tools 6 kB, recorded HTTP requests of agents 40 kB.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

VOCABULARY = 2000


class Words:
    """Texts of words from a made-up vocabulary, cut from one long text."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgkqjxz"
        words = ["".join(self.random.choices(letters, k=self.random.randrange(2, 10))) for _ in range(VOCABULARY)]
        self.long = " ".join(self.random.choices(words, k=60_000))

    def text(self, characters: int) -> str:
        """A text of about so many characters."""
        size = self.random.randrange(characters // 2, characters * 3 // 2)
        start = self.random.randrange(len(self.long) - size)
        return self.long[start : start + size]


TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "limit": {"type": "number", "default": 0.7}},
        },
    },
}


def trace(words: Words, n: int) -> dict[str, Any]:
    """A 90-turn agent trace of about 86 kB."""
    head = {"role": "system", "system_prompt": words.text(3000), "text": None, "mask": False}
    turns = [
        {"role": "user" if i % 2 == 0 else "ai", "text": words.text(850), "system_prompt": None, "mask": i % 2 == 1}
        for i in range(89)
    ]
    return {
        "instance_id": f"repo__name-{n}",
        "exit_status": "submitted",
        "target": n % 3 == 0,
        "trajectory": [head, *turns],
        "patch": words.text(2000),
    }


def sharegpt(words: Words, n: int) -> dict[str, Any]:
    """Three exchanges under from and value, about 7 kB."""
    turns = [
        {"from": "human" if i % 2 == 0 else "gpt", "value": words.text(350 if i % 2 == 0 else 1900)} for i in range(6)
    ]
    return {"id": f"chat_{n}", "conversations": turns}


def openai(words: Words, n: int) -> dict[str, Any]:
    """Messages whose content is a text in some turns and a list of parts in others, about 9 kB."""

    def content(i: int, size: int) -> Any:
        parts = [{"type": "text", "text": words.text(size // 2)} for _ in range(2)]
        return parts if (n + i) % 3 == 0 else words.text(size)

    turns = [
        {"role": "user" if i % 2 == 0 else "assistant", "content": content(i, 500 if i % 2 == 0 else 1900)}
        for i in range(7)
    ]
    return {"id": n, "messages": [{"role": "system", "content": words.text(300)}, *turns]}


def tools(words: Words, n: int) -> dict[str, Any]:
    """A conversation with calls and results, and the tools as a JSON string, about 6 kB."""
    turns = [
        {"from": "human", "value": words.text(600)},
        {
            "from": "gpt",
            "value": f'<tool_call>{{"name": "lookup", "arguments": {{"word": "{words.text(8).strip()}"}}}}</tool_call>',
        },
        {"from": "tool", "value": words.text(1800)},
        {"from": "gpt", "value": words.text(1500)},
    ]
    return {"id": f"call-{n}", "conversations": turns, "tools": json.dumps([TOOL] * 6), "category": "x"}


def http(words: Words, n: int) -> dict[str, Any]:
    """A recorded request with its messages and tools below body, about 40 kB."""
    call = {
        "id": f"c{n}",
        "type": "function",
        "function": {"name": "lookup", "arguments": '{"word": "a", "limit": 0.7}'},
    }
    messages = [
        {"role": "system", "content": words.text(2000)},
        {"role": "user", "content": [{"type": "text", "text": words.text(600)}]},
        *(
            turn
            for _ in range(16)
            for turn in (
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{n}", "content": words.text(1600)},
            )
        ),
    ]
    body = {"model": "m", "temperature": 0.7, "messages": messages, "tools": [TOOL] * 10}
    return {"type": "request", "request_id": f"r{n}", "created": 1700000000 + n, "status_code": 200, "body": body}


@dataclass(frozen=True)
class Shape:
    """A kind of rows: its maker, the paths that a declaration of it needs, and the declaration's schema."""

    name: str
    make: Callable[[Words, int], dict[str, Any]]
    paths: tuple[str, ...]
    schema: dict[str, Any]
    kind: str = "jsonl"

    def rows(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Endless rows."""
        words, n = Words(seed), 0
        while True:
            yield self.make(words, n)
            n += 1


SHAPES = (
    Shape(
        "traces",
        trace,
        ("trajectory[role=user].text", "trajectory[0].system_prompt", "instance_id"),
        {
            "turns": {"each": "trajectory", "role": "role", "text": ["text", "system_prompt"]},
            "roles": {"ai": "assistant"},
            "keep": "first_user",
        },
    ),
    Shape(
        "sharegpt",
        sharegpt,
        ("conversations[from=human].value",),
        {"turns": {"each": "conversations", "role": "from", "text": "value"}, "keep": "first_user"},
    ),
    Shape(
        "openai",
        openai,
        ("messages[role=user].content", "messages[role=system].content"),
        {"turns": {"each": "messages"}, "keep": "to_last_user"},
    ),
    Shape(
        "tools",
        tools,
        ("conversations[from=human|tool].value", "tools"),
        {"turns": {"each": "conversations", "role": "from", "text": "value"}, "tools": "tools", "keep": "first_user"},
    ),
    Shape(
        "http",
        http,
        ("body.messages[role=user].content[*].text", "body.tools[*].function.name"),
        {
            "turns": {"each": "body.messages"},
            "tools": "body.tools",
            "where": "@.status_code == 200",
            "keep": "to_last_input",
        },
    ),
)
