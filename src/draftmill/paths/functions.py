"""The five functions of RFC 9535 (section 2.4): their types, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from draftmill.errors import did_you_mean
from draftmill.paths import iregexp
from draftmill.paths.syntax import Argument, Call, Literal, Query


class Nothing:
    """The type of NOTHING, what a path without a match gives to a comparison; equal only to itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()


class Kind(Enum):
    """The three types of RFC 9535, section 2.4.1."""

    VALUE = auto()
    LOGICAL = auto()
    NODES = auto()

    @staticmethod
    def of(argument: Argument) -> Kind:
        """The type of an argument; a singular path counts as NODES, though it also serves as a VALUE."""
        if isinstance(argument, Call):
            return FUNCTIONS[argument.name][1]
        if isinstance(argument, Query):
            return Kind.NODES
        return Kind.VALUE if isinstance(argument, Literal) else Kind.LOGICAL


def length(value: Any) -> int | Nothing:
    """Characters of a text, elements of an array, members of an object; nothing for the rest."""
    return len(value) if type(value) in (str, list, dict) else NOTHING


def sole(nodes: list[Any]) -> Any:
    """The one value of `nodes`, or nothing."""
    return nodes[0] if len(nodes) == 1 else NOTHING


def match(text: Any, pattern: Any) -> bool:
    """Whether the pattern covers the whole text."""
    return iregexp.matches(text, pattern, whole=True)


def search(text: Any, pattern: Any) -> bool:
    """Whether the pattern occurs in the text."""
    return iregexp.matches(text, pattern, whole=False)


FUNCTIONS: dict[str, tuple[tuple[Kind, ...], Kind, Callable[..., Any]]] = {
    "length": ((Kind.VALUE,), Kind.VALUE, length),
    "count": ((Kind.NODES,), Kind.VALUE, len),
    "match": ((Kind.VALUE, Kind.VALUE), Kind.LOGICAL, match),
    "search": ((Kind.VALUE, Kind.VALUE), Kind.LOGICAL, search),
    "value": ((Kind.NODES,), Kind.VALUE, sole),
}


def check_call(call: Call) -> str | None:
    """What is wrong with the call, or None: the name, the number of arguments, their types, a constant pattern."""
    if call.name not in FUNCTIONS:
        return f"there is no function {call.name}(): {did_you_mean(call.name, FUNCTIONS)}"
    wanted, _, _ = FUNCTIONS[call.name]
    if len(call.arguments) != len(wanted):
        plural = "" if len(wanted) == 1 else "s"
        return f"{call.name}() takes {len(wanted)} argument{plural}, not {len(call.arguments)}"
    for number, (argument, kind) in enumerate(zip(call.arguments, wanted, strict=True), 1):
        if complaint := _mismatch(argument, kind):
            return f"argument {number} of {call.name}() must be {complaint}"
    pattern = call.arguments[-1]
    if call.name in ("match", "search") and isinstance(pattern, Literal) and isinstance(pattern.value, str):
        return _pattern_complaint(call.name, pattern.value)
    return None


def _mismatch(argument: Argument, kind: Kind) -> str | None:
    if kind is Kind.NODES:
        return None if isinstance(argument, Query) else "a path"
    if isinstance(argument, Query):
        return "a path that matches one value at most" if argument.keys is None else None
    return None if Kind.of(argument) is Kind.VALUE else "a value"


def _pattern_complaint(name: str, pattern: str) -> str | None:
    try:
        iregexp.translate(pattern)
    except iregexp.PatternError as error:
        return f"the pattern of {name}(), at its character {error.position + 1}: {error}"
    return None
