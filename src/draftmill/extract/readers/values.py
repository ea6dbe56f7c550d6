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

from draftmill.extract.readers.items import BLANK, Blank, Reject

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_DIGITS_ALIKE = bytes(48 if 48 <= byte < 58 else 97 for byte in range(256))
_LONG_RUN = b"0" * 19
_HIGH, _DIGITS = np.uint32(0xF0F0F0F0), np.uint32(0x30303030)
_MANY = 1000
_NOT_FINITE = re.compile(rb"\b(?:NaN|Infinity)\b")


def has_long_number(block: bytes) -> bool:
    """Whether `block` has a run of 19 digits, or more.

    Such a run covers four neighbouring groups of four bytes, so only runs that do are looked at closely:
    0.2 ms a MiB, a tenth of orjson's time.
    """
    groups = (np.frombuffer(block, dtype=np.uint32, count=len(block) // 4) & _HIGH) == _DIGITS
    pairs = groups[:-1] & groups[1:]
    places = np.flatnonzero(pairs[:-2] & pairs[2:])
    if len(places) > _MANY:
        return _LONG_RUN in block.translate(_DIGITS_ALIKE)
    return any(_LONG_NUMBER.search(block, max(4 * int(place) - 18, 0), 4 * int(place) + 34) for place in places)


def parse_all(texts: list[bytes], long_number: bool) -> list[Any]:
    """The values of JSON texts; Reject for what is none, BLANK for an empty one. `long_number`: one may have some."""
    if long_number:
        return list(map(parse, texts))
    try:
        return list(map(orjson.loads, texts))
    except orjson.JSONDecodeError:
        return list(map(parse, texts))


def parse(text: bytes) -> Any | Reject | Blank:
    """The exact value of one JSON text, a Reject, or BLANK."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not text or text.isspace():
            return BLANK
        return _without_constants(text) if _NOT_FINITE.search(text) else refusal(str(error))
    return _exact(text) if _LONG_RUN in text.translate(_DIGITS_ALIKE) else value


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
