"""Where rows hold lists and objects, found by walking them; texts that are JSON are walked too.

    places = find_places(rows)       # {("messages",): Place(...), ("body", "tools"): ...}

A path is a tuple of keys, with None for "every element of the list here".
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from draftmill.extract.literals import parse

Keys = tuple[str | None, ...]

MAX_DEPTH = 7
MAX_ELEMENTS = 200
"""Elements of one list that are looked at: enough for the longest traces' structure."""
JSON_SHARE = 0.95
"""Texts of one place are JSON if at least this share of them parses to a list or an object."""
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True)
class Place:
    """The lists at one path: `lists` holds (row number, list); `decode` the paths to parse on the way."""

    keys: Keys
    decode: tuple[Keys, ...] = ()
    lists: list[tuple[int, list[Any]]] = field(default_factory=list)

    @property
    def rows(self) -> set[int]:
        """Numbers of the rows that hold a list here that is not empty."""
        return {row for row, found in self.lists if found}

    def elements(self) -> Iterator[Any]:
        """All elements of all lists."""
        for _, found in self.lists:
            yield from found


def path_text(keys: Iterable[str | None]) -> str:
    """The path in the shorthand; `$` for the row itself."""
    text = ""
    for key in keys:
        if key is None:
            text += "[*]"
        elif _PLAIN_NAME.fullmatch(key):
            text += f".{key}" if text else key
        else:
            text += "['" + json.dumps(key, ensure_ascii=False)[1:-1].replace("'", "\\'").replace('\\"', '"') + "']"
    return text or "$"


def find_places(rows: list[Any]) -> dict[Keys, Place]:
    """Every path at which some row holds a list, and what stands there."""
    places: dict[Keys, Place] = {}
    texts: dict[Keys, list[tuple[int, str]]] = defaultdict(list)
    for number, row in enumerate(rows):
        _walk(number, row, (), places, texts, ())
    for keys in list(texts):
        _walk_json(keys, texts[keys], places)
    return places


def _walk(
    number: int,
    value: Any,
    keys: Keys,
    places: dict[Keys, Place],
    texts: dict[Keys, list[tuple[int, str]]] | None,
    decode: tuple[Keys, ...],
) -> None:
    if len(keys) > MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            _walk(number, item, (*keys, key), places, texts, decode)
    elif isinstance(value, list):
        places.setdefault(keys, Place(keys, decode)).lists.append((number, value))
        for item in value[:MAX_ELEMENTS]:
            _walk(number, item, (*keys, None), places, texts, decode)
    elif isinstance(value, str) and texts is not None and value.lstrip()[:1] not in ("", *_LETTERS):
        texts[keys].append((number, value))


_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _walk_json(keys: Keys, found: list[tuple[int, str]], places: dict[Keys, Place]) -> None:
    """Walk the values of texts that are JSON (or printed Python), as if they stood in the row."""
    values = [(number, _structure(text)) for number, text in found]
    good = [(number, value) for number, value in values if value is not None]
    if len(good) < JSON_SHARE * len(values) or not good:
        return
    if keys and keys[-1] is None:  # the elements of a list are JSON texts
        place = places[keys[:-1]]
        if len(good) >= JSON_SHARE * sum(len(items) for _, items in place.lists):
            place.decode = (keys,)
            place.lists = [(number, [_structure(item) for item in items]) for number, items in place.lists]
    for number, value in good:
        _walk(number, value, keys, places, None, (keys,))


def _structure(text: Any) -> Any:
    """The list or object that a text holds, else None."""
    if not isinstance(text, str) or text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value, _ = parse(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list | dict) else None
