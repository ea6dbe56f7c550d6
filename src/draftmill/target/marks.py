"""Marks: short letters put into a conversation before it is rendered, found and removed afterwards.

They tell where the fields of an assistant turn ended up in the rendered text, and which special-token texts came
from the conversation and not from the template. Letters and digits survive JSON, trimming and escaping; a mark is
chosen so that no text of the conversation holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_NONCE = "zQj7"
_LITERAL, _FIELD, _GENERATION = "l", "f", "g"


class Place(NamedTuple):
    """A marked stretch of the rendered text, in characters of the text without marks."""

    turn: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Marked:
    """A rendered text without its marks, and where they were."""

    text: str
    literals: tuple[Place, ...]  # special-token texts of the conversation; turn is 0
    fields: tuple[Place, ...]  # fields of assistant turns
    generations: tuple[Place, ...]  # generation blocks; turn is 0
    whole: bool  # every mark that was opened was closed


class Marker:
    """Puts marks into one conversation and reads them back."""

    def __init__(self, conversation: bytes) -> None:
        """`conversation`: its JSON, which no mark may occur in."""
        nonce = _NONCE
        while nonce.encode() in conversation:
            nonce += "7"
        self._nonce = nonce
        self._pattern = re.compile(re.escape(nonce) + r"([lfg])(\d+)([ox])")

    def generation(self) -> tuple[str, str]:
        """The marks for generation blocks."""
        return f"{self._nonce}{_GENERATION}0o", f"{self._nonce}{_GENERATION}0x"

    def literals(self, value: Any, specials: re.Pattern[str]) -> Any:
        """A copy of a JSON value in which every text that `specials` finds is marked."""
        opened, closed = f"{self._nonce}{_LITERAL}0o", f"{self._nonce}{_LITERAL}0x"
        return map_strings(value, lambda text: specials.sub(lambda match: opened + match.group() + closed, text))

    def field(self, turn: int, text: str) -> str:
        """`text` with marks inside its surrounding blanks, so that a template may still trim it."""
        core = text.strip()
        if not core:
            return text
        before = len(text) - len(text.lstrip())
        opened, closed = f"{self._nonce}{_FIELD}{turn}o", f"{self._nonce}{_FIELD}{turn}x"
        return f"{text[:before]}{opened}{core}{closed}{text[before + len(core) :]}"

    def read(self, rendered: str) -> Marked:
        """Take the marks out of a rendered text."""
        parts = self._pattern.split(rendered)
        if len(parts) == 1:
            return Marked(rendered, (), (), (), True)
        places: dict[str, list[Place]] = {_LITERAL: [], _FIELD: [], _GENERATION: []}
        opened: dict[tuple[str, str], int] = {}
        position, whole = len(parts[0]), True
        for kind, turn, side, text in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True):
            if side == "o":
                whole &= (kind, turn) not in opened
                opened[kind, turn] = position
            elif (kind, turn) in opened:
                places[kind].append(Place(int(turn), opened.pop((kind, turn)), position))
            else:
                whole = False
            position += len(text)
        literals, fields, generations = (tuple(places[kind]) for kind in (_LITERAL, _FIELD, _GENERATION))
        return Marked("".join(parts[0::4]), literals, fields, generations, whole and not opened)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with `change` applied to every string, keys of inner objects too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): map_strings(item, change) for key, item in value.items()}
    return [map_strings(item, change) for item in value] if isinstance(value, list | tuple) else value
