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

from draftmill.extract.literals import LENIENT, LONG_DIGITS, has_long_run
from draftmill.extract.readers.items import BLANK, Blank, Reject

TOO_LARGE = "a number is too large for a double, or has more than 4300 digits"
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % LONG_DIGITS)
_HIGH, _DIGITS = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x3030303030303030)
_MANY, _SHORT = 1000, 256
_NOT_FINITE = re.compile(rb"\b(?:NaN|Infinity)\b")


def has_long_number(block: bytes) -> bool:
    """Whether `block` has a run of 19 digits, or more.

    Such a run covers a whole group of eight bytes, counted from the start, so only groups of digits are looked at
    closely: 0.13 ms a MB, a tenth of orjson's time.
    """
    if len(block) < _SHORT:
        return _LONG_NUMBER.search(block) is not None
    digits = np.frombuffer(block, np.uint64, len(block) // 8) & _HIGH == _DIGITS
    if not digits.any():
        return False
    places = np.flatnonzero(digits)
    if len(places) > _MANY:
        return has_long_run(block)
    return any(_LONG_NUMBER.search(block, max(8 * int(place) - 18, 0), 8 * int(place) + 26) for place in places)


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
        if _NOT_FINITE.search(text):
            return _without_constants(text)
        return _exact(text) if "infinity" in str(error) else refusal(str(error))
    return _exact(text) if has_long_run(text) else value


def refusal(complaint: str) -> Reject:
    """The Reject for a complaint of orjson."""
    if "not valid UTF-8" in complaint:
        return Reject("invalid_utf8", "the line is not UTF-8")
    if "end of data" in complaint:
        return Reject("truncated_json", complaint)
    return Reject("nested_too_deep" if "depth limit" in complaint else "not_json", complaint)


def _exact(text: bytes) -> Any | Reject:
    try:
        return json.loads(text, **LENIENT)
    except json.JSONDecodeError as error:
        return Reject("not_json", f"{error}")
    except RecursionError:
        return Reject("nested_too_deep", "objects or lists within one another, more than Python can follow")
    except ValueError:  # beyond a double, or a whole number of more than 4300 digits, which Python refuses to read
        return Reject("number_too_large", TOO_LARGE)


def _without_constants(text: bytes) -> Any | Reject:
    value = _exact(text)
    try:
        json.dumps(value, ensure_ascii=False).encode() if not isinstance(value, Reject) else None
    except UnicodeEncodeError:
        return Reject("not_json", "half of a surrogate pair in a string")
    return value
