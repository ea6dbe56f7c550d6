"""What stands beside a conversation, or instead of one: system text, tools, ids, and known columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftmill.extract.tools import regions
from draftmill.inspect import names
from draftmill.inspect.conversation import characters, texts_of
from draftmill.inspect.places import Keys, Place, path_text

_BEFORE_JSON = re.compile(r"\n[ \t]*(?=[\[{])")
_LAST_WORDS = re.compile(r"(?:\S+ ){0,4}\S+$")
_WORDS_CHARS = 200
"""The last words of a line before JSON begins are looked for in so many characters."""
_ID_NAME = re.compile(r"(?!tool_call_id|call_id)(?:id|uuid|.*_id|.*Id)")
TOOLS_SHARE = 0.5
WHERE_SHARE = 0.95
"""Rows without a conversation are filtered if there are more than a few."""
THOUGHTS_SHARE = 0.5
"""A column of thoughts has at least so many different texts a row."""
GROUP_SHARE = 0.8
"""An id groups rows if there are at most so many different values a row."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Values by path, for the members of rows and of the objects in them (not of lists)."""

    rows: list[Any]
    values: dict[Keys, list[Any]]

    def top_level(self) -> list[str]:
        """The keys of rows, sorted."""
        return sorted(keys[0] for keys in self.values if len(keys) == 1 and isinstance(keys[0], str))

    def texts(self, keys: Keys) -> list[str]:
        """The texts at a path that are not empty."""
        return [value for value in self.values.get(keys, ()) if isinstance(value, str) and value.strip()]

    def is_text(self, keys: Keys) -> bool:
        """Whether what stands there is text, some of it not empty."""
        given = [value for value in self.values.get(keys, ()) if value is not None]
        return bool(given) and all(isinstance(value, str) for value in given) and bool(self.texts(keys))

    def is_content(self, keys: Keys) -> bool:
        """Whether what stands there is text, or a list of text parts."""
        given = [value for value in self.values.get(keys, ()) if value]
        return bool(given) and all(isinstance(value, str | list) and characters(value) for value in given)


def columns_of(rows: list[Any], depth: int = 3) -> Columns:
    """The columns of rows that are objects."""
    values: dict[Keys, list[Any]] = {}

    def add(value: Any, keys: Keys) -> None:
        if keys:
            values.setdefault(keys, []).append(value)
        if isinstance(value, dict) and len(keys) < depth:
            for key, item in value.items():
                add(item, (*keys, key))

    for row in rows:
        add(row, ())
    return Columns(rows, values)


def find_system(columns: Columns, conversation: Keys) -> Keys | None:
    """The path of a system text beside the conversation, or at the top of the row."""
    parents = dict.fromkeys([conversation[:-1], ()])
    options = [(*parent, name, *inner) for parent in parents for name in names.SYSTEM for inner in ((), ("parts",))]
    return next((keys for keys in options if None not in keys and columns.is_content(keys)), None)


def find_tools(places: Mapping[Keys, Place], conversation: Keys) -> Place | None:
    """The tool specs: objects with `name` and `parameters`, beside the conversation or above it, else in an object of
    the row.
    """
    specs = [place for keys, place in places.items() if keys != conversation and _are_specs(list(place.elements()))]
    found = [place for place in specs if _above(place.keys, conversation)]
    found = found or [place for place in specs if None not in place.keys and place.keys[-1] in names.TOOLS]
    found.sort(key=lambda place: (place.keys[-1] not in names.TOOLS, -len(place.rows), len(place.keys)))
    return found[0] if found else None


def _above(keys: Keys, conversation: Keys) -> bool:
    """Whether a list stands beside the conversation or above it, or in a list of groups (`tools[*].functions`)."""
    if conversation and keys[: len(conversation)] == conversation:
        return False
    holder = keys[:-3] if keys[-2:-1] == (None,) else keys[:-1]
    return conversation[: len(holder)] == holder


def _are_specs(elements: list[Any]) -> bool:
    functions = [element.get("function", element) if isinstance(element, dict) else None for element in elements]
    named = [it for it in functions if isinstance(it, dict) and isinstance(it.get("name"), str)]
    if not named or len(named) < len(elements):
        return False
    described = [it for it in named if "parameters" in it or "input_schema" in it or _describes(it)]
    return len(described) >= TOOLS_SHARE * len(named)


def _describes(item: Mapping[str, Any]) -> bool:
    """Whether what may be a call too (a name, and arguments) says what it is for, as a spec does."""
    return "description" in item and any(isinstance(item.get(key), dict) for key in names.PARAMETERS)


def _words_before_json(text: str) -> str | None:
    for begun in _BEFORE_JSON.finditer(text):
        words = _LAST_WORDS.search(text[max(0, begun.start() - _WORDS_CHARS) : begun.start()].rstrip())
        if words:
            return words[0]
    return None


def tool_marks(system_texts: list[str]) -> tuple[str, str] | None:
    """What most system texts have tool specs between: <tools> and </tools>, or a line and the end of the text."""
    options = [("<tools>", "</tools>")]
    first = next((words for text in system_texts if (words := _words_before_json(text))), None)
    if first:
        # To the end of the text, or, if more follows, to the end of the line.
        options += [(first, ""), (f"{first}\n", "\n")]
    for marks in options:
        holding = sum(bool(regions(text, *marks)) for text in system_texts)
        if holding > TOOLS_SHARE * len(system_texts):
            return marks
    return None


def spec_shape(place: Place) -> str | dict[str, str]:
    """The value of `tools`: the path, or the keys where the parameters are not called so."""
    path = path_text(place.keys)
    specs = [spec for spec in place.elements() if isinstance(spec, dict)]
    called = next((key for key in names.PARAMETERS if any(key in spec for spec in specs)), "parameters")
    if called != "parameters":
        described = {"description": "description"} if any(spec.get("description") for spec in specs) else {}
        return {"each": path, "name": "name", **described, "parameters": called}
    return path


def find_id(columns: Columns) -> str | None:
    """A top-level key whose name is that of an id and whose values are all there and all different."""
    for key in columns.top_level():
        values = columns.values[key,]
        unique = {str(value) for value in values if isinstance(value, str | int) and value != ""}
        if _ID_NAME.fullmatch(key) and len(unique) == len(columns.rows):
            return key
    return None


def find_where(columns: Columns, having: set[int]) -> str | None:
    """A filter for the rows that have a conversation, if one value of one key tells them from all others."""
    if len(having) > WHERE_SHARE * len(columns.rows):
        return None
    for key in columns.top_level():
        labels = [_label(row, key) for row in columns.rows]
        with_it = {labels[number] for number in having}
        others = {label for number, label in enumerate(labels) if number not in having}
        if len(with_it) == 1 and with_it.isdisjoint({None, *others}):
            path = path_text((key,))
            return f"@{path if path.startswith('[') else f'.{path}'} == {json.dumps(with_it.pop())}"
    return None


def _label(row: Any, key: str) -> str | None:
    value = row.get(key) if isinstance(row, dict) else None
    return value if isinstance(value, str) else None


def find_groups(columns: Columns) -> list[str]:
    """Top-level keys named like ids whose values several rows share: runs of one task, parts of one chat."""
    found = []
    for key in columns.top_level():
        values = [value for value in columns.values[key,] if isinstance(value, str | int) and value != ""]
        if _ID_NAME.fullmatch(key) and 1 < len(set(values)) <= GROUP_SHARE * len(values):
            found.append(key)
    return found


def text_columns(columns: Columns, parent: Keys = ()) -> dict[str, str]:
    """{known name: key} of the keys that hold text, of rows or of the object at `parent` in them."""
    depth = len(parent) + 1
    inside = [keys for keys in columns.values if len(keys) == depth and keys[:-1] == parent and columns.is_text(keys)]
    return names.plain_names(str(keys[-1]) for keys in inside)


def prompt_lists(places: Mapping[Keys, Place]) -> tuple[Keys, str] | None:
    """A top-level list of prompts, such as `turns` of benchmark questions, and the path to their texts.

    The prompts are texts, or objects with one text and no label: [{"content": …}].
    """
    wanted = ("turns", "prompts", "questions", *names.USER)
    for name in wanted:
        place = places.get((name,))
        if place is None or not (elements := list(place.elements())):
            continue
        if all(isinstance(element, str) for element in elements):
            return place.keys, f"{path_text(place.keys)}[*]"
        held = {tuple(element) if isinstance(element, dict) else () for element in elements}
        if len(held) == 1 and len(only := held.pop()) == 1 and all(isinstance(it[only[0]], str) for it in elements):
            return place.keys, f"{path_text(place.keys)}[*].{path_text(only)}"
    return None


def find_calls(places: Mapping[Keys, Place]) -> str | None:
    """A column with JSON text of the calls which answer a question."""
    for name in names.CALLED:
        place = places.get((name,))
        elements = list(place.elements()) if place and place.decode else []
        if elements and all(isinstance(it, dict) and {"name", "arguments"} <= it.keys() for it in elements):
            return name
    return None


def find_reasoning(columns: Columns, known: Mapping[str, str]) -> str | None:
    """A column of thoughts beside an answer; a column of a few words for all rows (on, off) is none."""
    for name in names.REASONING:
        texts = columns.texts((known[name],)) if name in known else []
        if texts and len(set(texts)) > THOUGHTS_SHARE * len(texts):
            return known[name]
    return None


def shared(texts: list[str]) -> float:
    """The share of the most frequent text."""
    return max(map(texts.count, set(texts)), default=0) / len(texts) if texts else 0.0


def content_text(content: Any) -> str:
    """The text of a content, parts joined."""
    return "".join(texts_of(content))
