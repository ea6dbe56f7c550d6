"""The characters of a path: position, tokens, strings, numbers, and the error that points at one."""

from __future__ import annotations

import re

from draftmill.paths.errors import PathError
from draftmill.paths.syntax import Literal

MAX_DEPTH = 50
MAX_DIGITS = 400

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?")
_BLANK = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile("[^'\"\\\\\u0000-\u001f\ud800-\udfff]+")
_HEX = re.compile(r"u([0-9A-Fa-f]{4})")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\"}


class Scanner:
    """A text and a position in it; every method starts at `self.position` and moves it on."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def number(self) -> Literal:
        """A JSON number; -0 is 0."""
        found = NUMBER.match(self.text, self.position)
        assert found
        self.position = found.end()
        text = found.group()
        if len(text) > MAX_DIGITS:
            raise self.error(f"a number of more than {MAX_DIGITS} digits", found.start())
        return Literal(float(text) if found["fraction"] or found["exponent"] else int(text), text)

    def string(self) -> str:
        """A quoted string, either quote."""
        start, mark = self.position, self.text[self.position]
        self.position += 1
        parts = []
        while not self.take(mark):
            if plain := self.match(_PLAIN):
                parts.append(plain)
            elif self.take("\\"):
                parts.append(self.escape(mark))
            elif self.at("'", '"'):
                parts.append(self.text[self.position])
                self.position += 1
            elif self.position == len(self.text):
                raise self.error(f"the string that begins here does not end: {mark} is missing", start)
            else:
                raise self.error("this character must be written as an escape (\\n, \\t, \\u....) in a string")
        return "".join(parts)

    def escape(self, mark: str) -> str:
        """What follows a backslash."""
        sign = self.text[self.position : self.position + 1]
        if sign == mark or sign in _ESCAPES:
            self.position += 1
            return _ESCAPES.get(sign, mark)
        start = self.position - 1
        unit = self.code_unit(start)
        if 0xD800 <= unit < 0xDC00 and self.take("\\"):
            low = self.code_unit(start)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
        if 0xD800 <= unit < 0xE000:
            raise self.error("half of a surrogate pair", start)
        return chr(unit)

    def code_unit(self, start: int) -> int:
        """`uXXXX` as a number."""
        found = _HEX.match(self.text, self.position)
        if not found:
            raise self.error("not an escape of JSON strings", start)
        self.position = found.end()
        return int(found[1], 16)

    def blanks(self) -> None:
        """Skip blanks."""
        found = _BLANK.match(self.text, self.position)
        self.position = found.end() if found else self.position

    def at(self, *signs: str) -> bool:
        """Whether one of `signs` stands here."""
        return self.text.startswith(signs, self.position)

    def take(self, sign: str) -> bool:
        """Skip `sign` if it stands here."""
        if not self.text.startswith(sign, self.position):
            return False
        self.position += len(sign)
        return True

    def expect(self, sign: str) -> None:
        """Skip `sign` or fail."""
        if not self.take(sign):
            raise self.error(f"'{sign}' is missing")

    def look(self, pattern: re.Pattern[str]) -> bool:
        """Whether `pattern` matches here."""
        return pattern.match(self.text, self.position) is not None

    def match(self, pattern: re.Pattern[str]) -> str:
        """What `pattern` matches here, skipped; empty if nothing."""
        found = pattern.match(self.text, self.position)
        if found is None:
            return ""
        self.position = found.end()
        return found.group()

    def deeper(self, start: int) -> None:
        """Count one level of nesting."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} levels of nesting", start)

    def error(self, message: str, position: int | None = None) -> PathError:
        """The error that points at `position`, or here."""
        return PathError(message, self.text, self.position if position is None else position)
