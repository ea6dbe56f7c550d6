"""JSON files that are one document: arrays element by element, objects and `rows` paths as a whole."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from draftmill import paths
from draftmill.errors import DataError
from draftmill.extract.readers import files
from draftmill.extract.readers.items import Chunk, Reject
from draftmill.extract.readers.values import parse

_BLANK = re.compile(r"[ \t\n\r]*")
_AFTER = frozenset(",] \t\n\r")
_DAMAGED = re.compile("[\ud800-\udfff]")


def read_document(chunk: Chunk) -> Iterator[list[Any]]:
    """The rows of a JSON file, in batches: an array's elements, one object, or the matches of `rows`."""
    if chunk.rows is None and _begins_array(chunk):
        yield from ([element] for element in _elements(chunk))
        return
    text = b"".join(files.blocks(chunk.path, chunk.file, chunk.compression))
    value = parse(text.removeprefix(codecs.BOM_UTF8))
    if isinstance(value, Reject):
        raise DataError(f"is not JSON: {value.detail}", file=chunk.file, fix=_fix(text))
    yield [value] if chunk.rows is None else select(chunk.rows, value)


def select(rows: str, document: Any) -> list[Any]:
    """The rows that a `source.rows` path finds in a document."""
    return paths.compile("$[*]" if rows == "*" else rows)(document)


def _fix(text: bytes) -> str | None:
    begun = text.lstrip()[:1]
    return None if begun in (b"{", b"[") else "only JSON, JSON Lines, csv, tsv and Parquet are read (.gz, .zst)"


def _begins_array(chunk: Chunk) -> bool:
    for block in files.blocks(chunk.path, chunk.file, chunk.compression):
        if begun := block.removeprefix(codecs.BOM_UTF8).lstrip():
            return begun[:1] == b"["
    return False


class _Text:
    """The text of a file that is decoded as it is read on; what was read past is forgotten."""

    def __init__(self, chunk: Chunk) -> None:
        self._blocks = files.blocks(chunk.path, chunk.file, chunk.compression)
        # Bytes that are not UTF-8 become surrogates, which are looked for in the elements.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self.text, self.position, self.ended = "", 0, False
        self._decode = json.JSONDecoder(parse_constant=_null, parse_float=self._float).raw_decode
        self._infinite = False

    def value(self) -> tuple[Any, int]:
        """The JSON value here (a Reject where a number is too large), and where it ends. Raises JSONDecodeError."""
        self._infinite = False
        value, end = self._decode(self.text, self.position)
        return Reject("not_json", "a number is too large for a double") if self._infinite else value, end

    def _float(self, digits: str) -> float:
        number = float(digits)
        self._infinite = self._infinite or number - number != 0
        return number

    def more(self, size: int) -> bool:
        """Read `size` characters on, or to the end; False if there are none."""
        parts, got = [self.text[self.position :]], 0
        while got < size and not self.ended:
            block = next(self._blocks, None)
            parts.append(self._decoder.decode(block or b"", final=block is None))
            got, self.ended = got + len(parts[-1]), block is None
        self.text, self.position = "".join(parts), 0
        return got > 0

    def sign(self) -> str:
        """The next sign that is not blank, not yet passed; empty at the end."""
        while True:
            blank = _BLANK.match(self.text, self.position)
            self.position = blank.end() if blank else self.position
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.more(1):
                return ""


def _elements(chunk: Chunk) -> Iterator[Any]:
    """The elements of the array that the file is; memory holds one of them and a block."""
    text, number = _Text(chunk), 0
    text.sign()
    text.position += 1
    if text.sign() == "]":
        return
    while True:
        number += 1
        yield _element(text, chunk, number)
        sign = text.sign()
        text.position += 1
        if sign == "]":
            break
        if sign != ",":
            found = f"'{sign}' after it, not ',' or ']'" if sign else "nothing after it"
            raise DataError(f"the JSON array breaks off after element {number}", file=chunk.file, found=found)
    if text.sign():
        raise DataError(f"there is more after the JSON array of {number} elements", file=chunk.file)


def _null(_: str) -> None:
    return None


def _element(text: _Text, chunk: Chunk, number: int) -> Any | Reject:
    size = files.BLOCK
    text.sign()
    while True:
        try:
            value, end = text.value()
        except (ValueError, RecursionError) as error:
            if _may_be_cut(error, text) and text.more(size):
                size *= 2
                continue
            raise _broken(error, text, chunk, number) from None
        # A number may go on where the text read so far ends, even after a point or an e.
        if text.text[end : end + 1] in _AFTER or not text.more(size):
            break
    start, text.position = text.position, end
    if _DAMAGED.search(text.text, start, end):
        return Reject("invalid_utf8", "the element is not UTF-8")
    if text.text.find("\\ud", start, end) >= 0 or text.text.find("\\uD", start, end) >= 0:
        # `json` takes halves of surrogate pairs, which no UTF-8 can hold; orjson does not.
        return parse(text.text[start:end].encode())
    return value


def _may_be_cut(error: Exception, text: _Text) -> bool:
    """Whether more text could mend the error: it stands at the end of what is read, or a string runs over it."""
    if not isinstance(error, json.JSONDecodeError) or len(text.text) > files.LONGEST_LINE:
        return False
    return error.msg.startswith("Unterminated string") or error.pos > len(text.text) - 32


def _broken(error: Exception, text: _Text, chunk: Chunk, number: int) -> DataError:
    found = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    fix = "download the file again if it was cut" if text.ended else None
    return DataError(f"the JSON array breaks off in element {number}: {found}", file=chunk.file, fix=fix)
