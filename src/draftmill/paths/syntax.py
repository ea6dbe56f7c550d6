"""What a path is made of, once parsed; `str` of every part is its canonical RFC 9535 text.

Query -> Segment -> Selector (Name | Index | Slice | Wildcard | Filter)
Filter -> Logical (Or | And | Not | Test | Comparison) -> Operand (Literal | Query | Call)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_ESCAPES = {"'": "\\'", "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quote(text: str) -> str:
    """`text` as a single-quoted string of a normalized path (RFC 9535, section 2.7)."""
    escaped = (_ESCAPES.get(c) or (c if c >= " " else f"\\u{ord(c):04x}") for c in text)
    return f"'{''.join(escaped)}'"


@dataclass(frozen=True, slots=True)
class Name:
    """`['name']`: the member of an object."""

    name: str

    def __str__(self) -> str:
        return quote(self.name)


@dataclass(frozen=True, slots=True)
class Index:
    """`[3]`, `[-1]`: the element of an array."""

    index: int

    def __str__(self) -> str:
        return str(self.index)


@dataclass(frozen=True, slots=True)
class Slice:
    """`[start:stop:step]`, with Python's meaning of the three; a step of 0 selects nothing."""

    start: int | None
    stop: int | None
    step: int | None

    def __str__(self) -> str:
        start, stop = ("" if bound is None else bound for bound in (self.start, self.stop))
        return f"{start}:{stop}" if self.step is None else f"{start}:{stop}:{self.step}"


@dataclass(frozen=True, slots=True)
class Wildcard:
    """`[*]`: every element or member value."""

    def __str__(self) -> str:
        return "*"


@dataclass(frozen=True, slots=True)
class Filter:
    """`[?test]`: every element or member value for which `test` holds."""

    test: Logical

    def __str__(self) -> str:
        return f"?{self.test}"


Selector = Name | Index | Slice | Wildcard | Filter


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of a path: what its selectors take from each value, or from all values below it."""

    selectors: tuple[Selector, ...]
    descendant: bool = False

    def __str__(self) -> str:
        return f"{'..' if self.descendant else ''}[{', '.join(map(str, self.selectors))}]"

    @property
    def single(self) -> Selector | None:
        """The one selector of a child segment, else None."""
        return self.selectors[0] if len(self.selectors) == 1 and not self.descendant else None


@dataclass(frozen=True, slots=True)
class Query:
    """A path from the document (`$`) or, inside a filter, from the value under test (`@`)."""

    segments: tuple[Segment, ...]
    relative: bool = False

    def __str__(self) -> str:
        return ("@" if self.relative else "$") + "".join(map(str, self.segments))

    @property
    def keys(self) -> tuple[str | int, ...] | None:
        """Names and indexes in order if the path can match one value at most (a singular query), else None."""
        keys: list[str | int] = []
        for segment in self.segments:
            match segment.single:
                case Name(name):
                    keys.append(name)
                case Index(index):
                    keys.append(index)
                case _:
                    return None
        return tuple(keys)


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number, true, false or null; `text` is a number as it was written, else empty."""

    value: Any
    text: str = ""

    def __str__(self) -> str:
        return self.text or (quote(self.value) if isinstance(self.value, str) else json.dumps(self.value))


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments, already checked against its declared types."""

    name: str
    arguments: tuple[Argument, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left operator right`; both sides give one value or nothing."""

    left: Operand
    operator: str
    right: Operand

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True)
class Test:
    """A path that matches something, or a function that answers yes."""

    subject: Query | Call

    def __str__(self) -> str:
        return str(self.subject)


@dataclass(frozen=True, slots=True)
class Not:
    """`!part`."""

    part: Logical

    def __str__(self) -> str:
        return f"!{self.part}" if isinstance(self.part, Test) else f"!({self.part})"


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold."""

    parts: tuple[Logical, ...]

    def __str__(self) -> str:
        return " && ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """Some part holds."""

    parts: tuple[Logical, ...]

    def __str__(self) -> str:
        return " || ".join(map(str, self.parts))


Operand = Literal | Query | Call
Logical = Or | And | Not | Test | Comparison
Argument = Operand | Logical
