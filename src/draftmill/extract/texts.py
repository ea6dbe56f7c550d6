"""The text of a turn: alternatives, joined texts, and contents that are lists of parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from draftmill.extract.literals import dumps
from draftmill.extract.outcome import Rejected
from draftmill.extract.schema import Paths, Text

Blank = Callable[[str], bool]
TextOf = Callable[[Any], str]
_TEXT_KEYS = ("text", "value", "content")
_NOT_A_NAME = re.compile(r"[^\w.-]")
MAX_PARTS_DEPTH = 32


def blank(empty: frozenset[str]) -> Blank:
    """Whether a text counts as empty: nothing, whitespace only, or one of the words that mean nothing."""
    if empty <= {""}:
        return lambda text: not text or text.isspace()
    return lambda text: text.strip() in empty


def plain_name(paths: Paths) -> str | None:
    """The key, if `paths` is one path of one member name: hot loops then use `dict.get`."""
    if len(paths.options) != 1 or len(paths.options[0].steps) != 1:
        return None
    return paths.options[0].steps[0].name


def text_of(text: Text, parts: str, is_blank: Blank, objects: bool = False) -> TextOf:
    """A function from a turn to its text; "" if there is none. It raises Rejected for malformed contents.

    `objects`: an object that is no text part is text as JSON writes it, as what a tool returned may be.
    """
    readers = [_alternative(paths, parts, objects) for paths in text.options]
    if len(readers) == 1 and len(text.options[0].options) == 1:
        return readers[0]
    by = text.by

    def first(turn: Any) -> str:
        for read in readers:
            found = read(turn)
            if not is_blank(found):
                return found
        return ""

    def joined(turn: Any) -> str:
        return by.join(found for read in readers if not is_blank(found := read(turn)))

    return joined if text.joined else first


def _alternative(paths: Paths, parts: str, objects: bool) -> TextOf:
    name = plain_name(paths)
    if objects:
        return lambda turn: "".join([_result_text(value, parts) for value in paths(turn)])
    if name is not None:

        def read_member(turn: Any) -> str:
            value = turn.get(name) if type(turn) is dict else None
            return value if type(value) is str else to_text(value, parts)

        return read_member
    return lambda turn: "".join([to_text(value, parts) for value in paths(turn)])


def _result_text(value: Any, parts: str) -> str:
    if type(value) is dict and "type" not in value and value.keys().isdisjoint(_TEXT_KEYS):
        return dumps(value).decode()
    return to_text(value, parts)


def to_text(value: Any, parts: str) -> str:
    """A content as text: a string as it is, a list of parts joined, a number as JSON writes it."""
    if value is None or type(value) is str:
        return value or ""
    if type(value) is list or type(value) is dict:
        if type(value) is list and (plain := _plain_parts(value)) is not None:
            return plain
        found: list[str] = []
        _add_parts(value if type(value) is list else [value], parts, found, 0)
        return "".join(found)
    if type(value) is bool:
        raise Rejected("text_is_a_boolean")
    return dumps(value).decode()


def _plain_parts(items: list[Any]) -> str | None:
    """The joined text of parts that are all {"type": "text", "text": a text} and nothing more, else None."""
    try:
        texts = [part["text"] for part in items if len(part) == 2 and part["type"] == "text"]
        return "".join(texts) if len(texts) == len(items) else None
    except (TypeError, KeyError):
        return None


def _add_parts(items: list[Any], policy: str, found: list[str], depth: int) -> None:
    if depth > MAX_PARTS_DEPTH:
        raise Rejected("malformed_part", "nested too deep")
    for part in items:
        if type(part) is str:
            found.append(part)
        elif type(part) is list:
            _add_parts(part, policy, found, depth + 1)
        elif type(part) is dict:
            _add_part(part, policy, found, depth)
        elif part is not None:
            raise Rejected("malformed_part", type(part).__name__)


def _add_part(part: dict[str, Any], policy: str, found: list[str], depth: int) -> None:
    if part.get("role") is not None:
        raise Rejected("malformed_part", "a part with a role")
    kind = part.get("type")
    if kind is None or (type(kind) is str and kind.endswith("text")):
        for key in _TEXT_KEYS:
            value = part.get(key)
            if type(value) is str:
                found.append(value)
                return
            if type(value) is list or type(value) is dict:
                _add_parts(value if type(value) is list else [value], policy, found, depth + 1)
                return
        if kind is not None:
            return  # a text part without text
    label = kind if type(kind) is str else next((key for key, value in part.items() if value is not None), "part")
    if policy == "reject":
        raise Rejected("other_part", label)
    if policy == "placeholder":
        found.append(f"[{_NOT_A_NAME.sub('', label) or 'part'}]")
