"""Texts that hold JSON, or a Python literal where somebody printed instead of dumping.

Data is never trusted: a literal is read only up to a size and a depth, and only if it is plain JSON data.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any, NoReturn

import orjson

MAX_LITERAL_CHARS = 1_000_000
MAX_LITERAL_DEPTH = 60
_DIGITS_ALIKE = bytes(48 if 48 <= byte < 58 else 97 for byte in range(256))
LONG_DIGITS = 19
_LONG_RUN = b"0" * LONG_DIGITS
_NOT_FINITE = re.compile(r"\b(?:NaN|Infinity)\b")
_OPENING, _CLOSING = frozenset("[{("), frozenset("]})")


class Unwritable(ValueError):
    """A value that JSON cannot say."""


def has_long_run(text: bytes) -> bool:
    """Whether `text` has a run of 19 digits, or more, wherever it stands."""
    return _LONG_RUN in text.translate(_DIGITS_ALIKE)


def loads(text: str) -> Any:
    """The value of a JSON text, whole numbers exact at any length. Raises ValueError."""
    data = text.encode()
    if len(data) > LONG_DIGITS and has_long_run(data):  # orjson makes a float of what does not fit 64 bits
        return json.loads(data, parse_constant=_refuse, parse_float=finite)
    return orjson.loads(data)


def finite(digits: str) -> float:
    """The number, if a double can hold it. Raises ValueError."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a double")
    return number


def null(_: str) -> None:
    """What NaN and the infinities are read as: JSON lacks them, and Python writes them."""


LENIENT: dict[str, Any] = {"parse_constant": null, "parse_float": finite}
"""How the `json` module reads what people write."""


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def dumps(value: Any) -> bytes:
    """`value` as compact JSON. Raises Unwritable for what JSON cannot say (half a character, nesting without end)."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Integers over 64 bits, or a real fault, which the next lines report.
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise Unwritable(f"cannot be written as JSON: {error}") from None


def comparable(value: Any) -> Any:
    """`value` with whole floats as whole numbers: 1.0 and 1 are equal, so keys made of them must be."""
    if type(value) is float:
        return int(value) if value.is_integer() else value
    if type(value) is list:
        return [comparable(item) for item in value]
    return {key: comparable(item) for key, item in value.items()} if type(value) is dict else value


def parse(text: str) -> tuple[Any, bool]:
    """(value, whether it was a Python literal) of a text; NaN and infinities are null. Raises ValueError."""
    try:
        return loads(text), False
    except (ValueError, RecursionError):
        pass
    if _NOT_FINITE.search(text):
        try:
            return json.loads(text, **LENIENT), False
        except (ValueError, RecursionError):
            pass
    return literal(text), True


def literal(text: str) -> Any:
    """The value of a Python literal made of JSON's types. Raises ValueError, also beyond the limits."""
    if len(text) > MAX_LITERAL_CHARS or _depth(text) > MAX_LITERAL_DEPTH:
        raise ValueError("longer or deeper than a Python literal may be")
    try:
        return _plain(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("neither JSON nor a Python literal") from None


def _depth(text: str) -> int:
    """An upper limit of the nesting: brackets within strings count too, and so do signs (`- - 1` nests)."""
    depth = deepest = 0
    for char in text:
        if char in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif char in _CLOSING:
            depth -= 1
    return max(deepest, text.count("--"), text.count("- -"))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise ValueError(f"{type(value).__name__} is not JSON")


def prune(value: Any) -> Any:
    """`value` without the null members of its objects: Arrow fills in every key that any row has."""
    if type(value) is dict:
        return {key: prune(item) for key, item in value.items() if item is not None}
    if type(value) is list:
        return [prune(item) for item in value]
    return value
