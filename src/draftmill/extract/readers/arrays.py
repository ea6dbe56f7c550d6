"""A JSON array of any size, element by element, and documents one after the other; memory holds a few blocks, or
one element.

Where elements begin alike, as in `}, {"id"` between all of them, the text is cut at that glue and the
pieces go to orjson, four times faster than finding the end of each element by parsing it. A piece that
orjson does not take (glue inside an element, another first key, a number or text that needs care) is read
carefully, by the `json` module, which also says where an element ends.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from draftmill.errors import DataError
from draftmill.extract.literals import null
from draftmill.extract.readers import files
from draftmill.extract.readers.items import Chunk, Reject
from draftmill.extract.readers.values import TOO_LARGE, has_long_number, parse

_BLANK = re.compile(r"[ \t\n\r]*")
_AFTER = frozenset(",] \t\n\r")
_DAMAGED = re.compile("[\ud800-\udfff]")
_GLUE = re.compile(r'[ \t\n\r]*,[ \t\n\r]*(\{[ \t\n\r]*"[^"\\\x00-\x1f]*")')
_GLUE_AHEAD = 4096
_WINDOW = 1 << 16
_JOINED = 4
_TRIES = 8


class Text:
    """The text of a file that is decoded as it is read on; what was read past is forgotten."""

    def __init__(self, chunk: Chunk) -> None:
        self._blocks = files.blocks(chunk.path, chunk.file, chunk.compression)
        # Bytes that are not UTF-8 become surrogates, which are looked for in the elements.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self.text, self.position, self.ended = "", 0, False

    def more(self, size: int) -> bool:
        """Read `size` characters on, or to the end; False if there are none."""
        if self.ended:
            return False
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


def elements(chunk: Chunk) -> Iterator[list[Any]]:
    """The elements of the array that the file is, in batches. Raises DataError where it breaks off."""
    text, careful, number, tries = Text(chunk), Careful(chunk), 0, _TRIES
    text.sign()
    text.position += 1
    if text.sign() == "]":
        return
    while True:
        number += 1
        yield [careful.element(text, number)]
        glue = _glue(text) if tries else None
        sign = text.sign()
        text.position += 1
        if sign == "]":
            break
        if sign != ",":
            found = f"'{sign}' after it, not ',' or ']'" if sign else "nothing after it"
            raise DataError(f"the JSON array breaks off after element {number}", file=chunk.file, found=found)
        if text.sign() == "]":  # a comma after the last element: people write it, and nothing is lost
            text.position += 1
            break
        if glue:
            text.sign()
            before = number
            for rows in _cut(text, *glue, window=max(_WINDOW, 8 * careful.size)):
                number += len(rows)
                yield rows
            tries = _TRIES if number - before >= _TRIES else tries - 1
    if text.sign():
        raise DataError(f"there is more after the JSON array of {number} elements", file=chunk.file)


def documents(chunk: Chunk) -> Iterator[list[Any]]:
    """JSON documents one after the other, with line ends or commas between them. Raises DataError for what is none."""
    text, careful, number = Text(chunk), Careful(chunk, "document {} in the file"), 0
    while sign := text.sign():
        if sign == "," and number:
            text.position += 1
        elif sign in "{[":
            number += 1
            yield [careful.element(text, number)]
        else:
            raise DataError(f"is not JSON after document {number}", file=chunk.file, found=f"'{sign}'")


def _glue(text: Text) -> tuple[str, str] | None:
    """(what stands between this element and the next, up to its first key, what of it belongs to the next)."""
    if len(text.text) - text.position < _GLUE_AHEAD:
        text.more(_GLUE_AHEAD)
    found = _GLUE.match(text.text, text.position)
    return (found.group(), found.group(1)) if found else None


def _cut(text: Text, glue: str, opening: str, window: int) -> Iterator[list[Any]]:
    """The elements that are followed by `glue`, as long as orjson takes them; afterwards `text` is at the next one.

    A string cannot hold the glue: the quotes in it would be escaped. `window`: characters looked at together.
    """
    while True:
        if len(text.text) - text.position < window:
            text.more(window)
        first, *others = text.text[text.position : text.position + window].split(glue)
        pieces = [first, *(opening + other for other in others[:-1])] if others else []
        values, used = _values(pieces, glue.removesuffix(opening))
        # All of a piece but its glue: the opening belongs to the next.
        text.position += sum(map(len, pieces[:used])) + used * (len(glue) - len(opening))
        if values:
            yield values
        if used < len(pieces) or not pieces:
            return


def _values(pieces: list[str], comma: str) -> tuple[list[Any], int]:
    """(values, how many pieces they are of) up to a piece that is not JSON, not even with those that follow."""
    texts = [piece.encode("utf-8", "surrogateescape") for piece in pieces]
    if not has_long_number(b"".join(texts)):
        try:
            return list(map(orjson.loads, texts)), len(texts)
        except orjson.JSONDecodeError:
            pass
    values: list[Any] = []
    used = 0
    while used < len(texts):
        for count in range(1, _JOINED + 1):
            # An object inside the element began like the elements do.
            value = parse(comma.encode().join(texts[used : used + count]))
            if type(value) is not Reject:
                break
            if value.reason != "truncated_json" or used + count >= len(texts):
                return values, used
        else:
            return values, used
        values.append(value)
        used += count
    return values, used


class Careful:
    """Elements found and parsed by the `json` module. `size`: characters of the last one; `name`: what they are."""

    def __init__(self, chunk: Chunk, name: str = "element {} of the JSON array") -> None:
        self._file, self._name, self._infinite, self.size = chunk.file, name, False, 0
        decoder = json.JSONDecoder(parse_constant=null, parse_float=self._float, parse_int=self._int)
        self._decode = decoder.raw_decode

    def _float(self, digits: str) -> float:
        number = float(digits)
        self._infinite = self._infinite or number - number != 0
        return number

    def _int(self, digits: str) -> int:
        self._infinite = self._infinite or len(digits) > 4300  # Python would refuse it
        return 0 if self._infinite else int(digits)

    def element(self, text: Text, number: int) -> Any | Reject:
        """The element that begins at the position of `text`, which is moved past it. Raises DataError."""
        size = files.BLOCK
        text.sign()
        while True:
            self._infinite = False
            try:
                value, end = self._decode(text.text, text.position)
            except (ValueError, RecursionError) as error:
                if _may_be_cut(error, text) and text.more(size):
                    size *= 2
                    continue
                raise self._broken(error, text, number) from None
            # A number may go on where the text read so far ends, even after a point or an e.
            if text.text[end : end + 1] in _AFTER or not text.more(size):
                break
        start, text.position, self.size = text.position, end, end - text.position
        return self._checked(value, text.text, start, end)

    def _checked(self, value: Any, text: str, start: int, end: int) -> Any | Reject:
        if self._infinite:
            return Reject("number_too_large", TOO_LARGE)
        if _DAMAGED.search(text, start, end):
            return Reject("invalid_utf8", "the element is not UTF-8")
        if text.find("\\ud", start, end) >= 0 or text.find("\\uD", start, end) >= 0:
            # `json` takes halves of surrogate pairs, which no UTF-8 can hold; orjson does not.
            return parse(text[start:end].encode())
        return value

    def _broken(self, error: Exception, text: Text, number: int) -> DataError:
        if isinstance(error, RecursionError):
            raise DataError(f"{self._name.format(number)} is nested too deep to be read", file=self._file)
        found = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        fix = "download the file again if it was cut" if text.ended else None
        return DataError(f"{self._name.format(number)} breaks off: {found}", file=self._file, fix=fix)


def _may_be_cut(error: Exception, text: Text) -> bool:
    """Whether more text could mend the error: it stands at the end of what is read, or a string runs over it."""
    if not isinstance(error, json.JSONDecodeError) or len(text.text) > files.LONGEST_LINE:
        return False
    return error.msg.startswith("Unterminated string") or error.pos > len(text.text) - 32
