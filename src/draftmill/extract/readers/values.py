"""JSON text to values, with exact numbers, by orjson where that is exact and by `json` where it is not.

orjson turns integers beyond 64 bits into floats, so texts with a run of 19 digits or more are parsed
again by `json`. NaN and the infinities, which JSON lacks but Python writes, are read as null.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import orjson

from draftmill.extract.readers.items import Reject

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_DIGITS_ALIKE = bytes(48 if 48 <= byte < 58 else 97 for byte in range(256))
_LONG_RUN = b"0" * 19
_HIGH, _DIGITS = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x3030303030303030)
_MANY = 1000
_NOT_FINITE = re.compile(rb"\b(?:NaN|Infinity)\b")


def has_long_number(block: bytes) -> bool:
    """Whether `block` has a run of 19 digits, or more.

    Such a run covers eight bytes at a multiple of eight, so only every eighth place is looked at:
    0.16 ms a MiB, a tenth of orjson's time.
    """
    words = np.frombuffer(block, dtype=np.uint64, count=len(block) // 8)
    places = np.flatnonzero((words & _HIGH) == _DIGITS)
    if len(places) > _MANY:
        return _LONG_RUN in block.translate(_DIGITS_ALIKE)
    return any(_LONG_NUMBER.search(block, max(8 * int(place) - 18, 0), 8 * int(place) + 26) for place in places)


def parse(text: bytes, suspicious: bool = True) -> Any | Reject:
    """The value of a JSON text, or a Reject. `suspicious`: it may have a long number."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _without_constants(text) if _NOT_FINITE.search(text) else refusal(str(error))
    if suspicious and _LONG_RUN in text.translate(_DIGITS_ALIKE):
        return _exact(text)
    return value


def refusal(complaint: str) -> Reject:
    """The Reject for a complaint of orjson."""
    if "not valid UTF-8" in complaint:
        return Reject("invalid_utf8", "the line is not UTF-8")
    if "end of data" in complaint:
        return Reject("truncated_json", complaint)
    return Reject("not_json", complaint)


def _exact(text: bytes) -> Any | Reject:
    try:
        return json.loads(text, parse_constant=_null)
    except (ValueError, RecursionError) as error:
        return Reject("not_json", f"{error}")


def _without_constants(text: bytes) -> Any | Reject:
    value = _exact(text)
    try:
        json.dumps(value, ensure_ascii=False).encode() if not isinstance(value, Reject) else None
    except UnicodeEncodeError:
        return Reject("not_json", "half of a surrogate pair in a string")
    return value


def _null(_: str) -> None:
    return None
