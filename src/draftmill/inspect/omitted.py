"""What belongs to a question and is not part of the proposal: answers to choose from, a passage it is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from draftmill.inspect import names
from draftmill.inspect.columns import Columns
from draftmill.inspect.places import path_text

_OPTION = re.compile(r"(?:op|opt|option|choice|distractor|ending)_?[a-h1-8]", re.IGNORECASE)
MIN_OPTIONS, MAX_OPTIONS = 2, 5
PRESENT_SHARE = 0.5
"""A passage is named if at least so many rows have one."""


def omitted(schema: Mapping[str, Any], columns: Columns) -> Iterator[str]:
    """Notes on columns that a person would most likely want in the question."""
    asked = _question(schema)
    written = str(schema)
    options = [path for path in _options(columns) if repr(path) not in written]
    if asked and len(options) >= MIN_OPTIONS:
        yield (
            "the answers to choose from are not part of the question; with them:  "
            f'turns: {{role: {{as: user}}, text: {{join: [{", ".join(map(_quoted, [asked, *options]))}], by: "\\n"}}}}'
        )
    passage = next((name for name in names.PASSAGES if _is_passage(name, columns)), None)
    if passage and repr(passage) not in written:
        if asked:
            text = f'{{join: [{passage}, {_quoted(asked)}], by: "\\n\\n"}}'
            yield f"`{passage}` is not part of the question; with it:  text: {text}"
        elif "system" not in schema:
            yield f"`{passage}` beside the conversation is left out; as the system text:  system: {passage}"


def _question(schema: Mapping[str, Any]) -> str | None:
    """The path of the one text that asks."""
    if "prompt" in schema:
        return str(schema["prompt"])
    blocks = schema.get("turns")
    first = blocks[0] if isinstance(blocks, list) else blocks
    text = first.get("text") if isinstance(first, dict) and first.get("role") == {"as": "user"} else None
    return text if isinstance(text, str) else None


def _options(columns: Columns) -> list[str]:
    """The paths of the answers to choose from: elements of a list, or columns of their own."""
    for keys in [(name, *inner) for name in names.OPTIONS for inner in ((), ("text",))]:
        lists = [value for value in columns.values.get(keys, ()) if isinstance(value, list)]
        if lists and all(isinstance(text, str) for value in lists for text in value):
            return [f"{path_text(keys)}[{place}]" for place in range(min(MAX_OPTIONS, max(map(len, lists))))]
    return [path_text((key,)) for key in columns.top_level() if _OPTION.fullmatch(key) and columns.texts((key,))]


def _is_passage(name: str, columns: Columns) -> bool:
    return len(set(columns.texts((name,)))) > PRESENT_SHARE * len(columns.rows)


def _quoted(path: str) -> str:
    return f'"{path}"' if "[" in path else path
