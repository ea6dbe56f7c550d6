"""Tool specs in the OpenAI form, from a path, a foreign shape, or the system text; and specs given twice.

A spec is {"type": "function", "function": {"name", "description"?, "parameters"?, …}}; what it holds stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from draftmill.extract.calls import parsed, spread
from draftmill.extract.literals import LENIENT, dumps, parse
from draftmill.extract.outcome import Message, Rejected, Work
from draftmill.extract.schema import Paths, Tools

Spec = dict[str, Any]
MAX_CACHED_CHARS = 20_000
MAX_MENTIONS = 64
"""Openings that are looked at in one text: its length must not be squared."""
ToolsOf = Callable[[Any, list[Message], Work], "bytes | None"]


def tools_of(tools: Tools) -> ToolsOf:
    """A function from a row and its messages to the row's specs as JSON; it may cut them out of the system text.

    It raises Rejected for what is no spec.
    """

    def find(row: Any, messages: list[Message], work: Work) -> bytes | None:
        systems = [message for message in messages if message["role"] == "system"]
        if tools.from_system:
            specs = [
                spec
                for message in systems
                for _, _, found in regions(message["content"], *tools.between)
                for spec in found
            ]
            encoded = dumps(specs)
            work.notes["tools_in_system"] += bool(specs)
        else:
            specs, encoded = _declared(tools, row, work)
        if specs and systems:
            _repeats(tools, specs, systems, work)
        return encoded if specs else None

    return find


def _declared(tools: Tools, row: Any, work: Work) -> tuple[list[Spec], bytes]:
    """The specs, and their JSON."""
    assert tools.shape is not None
    found = tools.shape.each(row)
    if tools.shape.fields:
        items = spread([_value(match, work) for match in found])
        specs = [_foreign(item, tools.shape.fields, work) for item in items]
    elif len(found) == 1 and type(found[0]) is str and len(found[0]) <= MAX_CACHED_CHARS:
        specs, encoded, literals = _specs_of_text(found[0])
        work.notes["python_literals"] += literals
        return specs, encoded
    else:
        specs = [spec for match in found for spec in specs_in(_value(match, work), work)]
    return specs, dumps(specs)


@lru_cache(maxsize=256)
def _specs_of_text(text: str) -> tuple[list[Spec], bytes, int]:
    """The specs in a JSON text, their JSON, and how many Python literals it took: many rows have the same text."""
    work = Work()
    specs = specs_in(_value(text, work), work)
    return specs, dumps(specs), work.notes["python_literals"]


def _value(match: Any, work: Work) -> Any:
    return parsed(match, work, "bad_tools") if type(match) is str else match


def specs_in(value: Any, work: Work) -> list[Spec]:
    """The specs in a list of specs, one spec, or a list of JSON texts of specs."""
    items = value if type(value) is list else [value]
    return [_spec(_value(item, work)) for item in items if item is not None]


def _spec(item: Any) -> Spec:
    if type(item) is dict:
        function = item.get("function")
        if type(function) is dict and type(function.get("name")) is str:
            return item if type(item.get("type")) is str else {**item, "type": "function"}
        if type(item.get("name")) is str:
            return {"type": "function", "function": item}
    raise Rejected("bad_tools", "neither {name, …} nor {function: {name, …}}")


def _foreign(item: Any, fields: Mapping[str, Paths], work: Work) -> Spec:
    function = {name: value for name, paths in fields.items() if (value := paths.one(item)) is not None}
    if type(function.get("name")) is not str:
        raise Rejected("bad_tools", "a tool without a name")
    if type(function.get("parameters")) is str:
        function["parameters"] = parsed(function["parameters"], work, "bad_tools")
    return {"type": "function", "function": function}


# -- specs in the system text ---------------------------------------------------------------------


def regions(text: str, opening: str, closing: str) -> list[tuple[int, int, list[Spec]]]:
    """(start, end, specs) of every stretch between the markers that holds specs; `closing` "": to the end.

    A mention of the markers in a sentence holds no specs and is passed over.
    """
    found = []
    start = text.find(opening)
    for _ in range(MAX_MENTIONS):
        if start < 0:
            break
        inner = start + len(opening)
        end = text.find(closing, inner) if closing else len(text)
        if end < 0:
            break
        specs = _specs_in_text(text[inner:end])
        if specs:
            found.append((start, end + len(closing), specs))
        start = text.find(opening, end + len(closing) if specs else inner)
    return found


def _specs_in_text(text: str) -> list[Spec]:
    try:
        values = _values_in(text.strip())
        specs = [spec for value in values for spec in specs_in(value, Work())]
    except (ValueError, Rejected):
        return []
    return specs


def _values_in(text: str) -> list[Any]:
    """The JSON values that stand one after the other; or one Python literal. Raises ValueError."""
    if not text or text[0] not in "[{":
        raise ValueError("no JSON")
    decoder, values, place = json.JSONDecoder(**LENIENT), [], 0
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            values.append(value)
            while place < len(text) and text[place] in " \t\r\n,":
                place += 1
    except (ValueError, RecursionError):
        return [parse(text)[0]]
    return values


def _repeats(tools: Tools, specs: list[Spec], systems: list[Message], work: Work) -> None:
    """Cut the specs out of the system text if that was asked for; count the rows where they stay in."""
    for message in systems:
        if tools.twice == "strip":
            text = message["content"]
            for start, end, _ in reversed(regions(text, *tools.between)):
                text = text[:start] + text[end:]
                work.notes["tools_stripped"] += 1
            message["content"] = text
        if _mentions(message["content"], specs):
            work.notes["tools_twice"] += 1


def _mentions(text: str, specs: list[Spec]) -> bool:
    """Whether every spec's name stands in the text as the value of a JSON member `name`."""
    if '"name"' not in text and "'name'" not in text:
        return False
    names = {spec["function"]["name"] for spec in specs}
    return all(f'"{name}"' in text or f"'{name}'" in text for name in names)
