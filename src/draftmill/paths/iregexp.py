"""I-Regexp (RFC 9485), the patterns of `match` and `search`, run by the `regex` package under a time limit.

The dialect is checked and rewritten here, so that nothing outside it (back references, lookaround,
flags) reaches the engine. Two liberties, which the compliance suite asks for: `^` and `$` are anchors.
"""

from __future__ import annotations

from functools import lru_cache

import regex

from draftmill.paths.errors import PatternTimeout

TIME_LIMIT_S = 2.0
MAX_PATTERN = 4096
MAX_SIZE = 20_000
MAX_NESTING = 50

_CATEGORY = r"\\[pP]\{(?:L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|Z[lps]?|S[ckmo]?|C[cfno]?)\}"
_ESCAPE = r"\\[()*+\-.?\[\\\]^nrt{|}]"
_TOKEN = regex.compile(
    rf"(?P<category>{_CATEGORY})|(?P<escape>{_ESCAPE})|(?P<class>\[\^?(?:{_CATEGORY}|{_ESCAPE}|[^\[\]\\])+\])"
    r"|(?P<repeat>[*+?]|\{\d+(?:,\d*)?\})|(?P<open>\()|(?P<close>\))|(?P<either>\|)"
    r"|(?P<dot>\.)|(?P<start>\^)|(?P<end>\$)|(?P<char>[^\\\[\]{}])"
)
_ITEM = rf"(?:{_ESCAPE}|[^\[\]\\\-])"
_CLASS = regex.compile(rf"\[(\^?)(-?)((?:{_CATEGORY}|{_ITEM}-{_ITEM}|{_ITEM})*)(-?)\]")


class PatternError(ValueError):
    """Not an I-Regexp; `position` is the offset in the pattern."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def translate(pattern: str) -> str:
    """`pattern` in the syntax of the `regex` package. Raises PatternError."""
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"a pattern may have {MAX_PATTERN} characters, this one has {len(pattern)}", 0)
    out, position = [], 0
    size = _Size()
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None or not token.lastgroup or not size.add(token.lastgroup, token.group()):
            raise PatternError(_complaint(pattern[position:]), position)
        if size.total > MAX_SIZE or len(size.outer) > MAX_NESTING:
            raise PatternError("too large once its repeats are written out", position)
        out.append(_rewrite(token.lastgroup, token.group(), position))
        position = token.end()
    if size.outer:
        raise PatternError("a ')' is missing", position)
    return "".join(out)


class _Size:
    """How large a pattern is once its repeats are written out, which is what the engine makes of them.

    `outer`: the sizes before each open parenthesis; `total`: the size of all so far; `atom`: that of
    the last atom, 0 where nothing can be repeated.
    """

    def __init__(self) -> None:
        self.outer: list[int] = []
        self.total, self.atom = 1, 0

    def add(self, kind: str, token: str) -> bool:
        """Count one token; False if it cannot stand here."""
        if kind == "open":
            self.outer.append(self.total)
            self.atom = 0
        elif kind == "close":
            if not self.outer:
                return False
            self.atom = self.total - self.outer.pop() + 1
        elif kind == "repeat":
            if not self.atom:
                return False
            self.total += self.atom * max(map(int, regex.findall(r"\d+", token)), default=0)
            self.atom = 0
        else:
            self.atom = 0 if kind in ("either", "start", "end") else 1
            self.total += 1
        return True


def _rewrite(kind: str, token: str, position: int) -> str:
    if kind == "class":
        parts = _CLASS.fullmatch(token)
        if parts is None or token in ("[]", "[^]"):
            raise PatternError(f"{token} is not a character class", position)
        negated, first, middle, last = parts.groups()
        return f"[{negated}{first and chr(92) + '-'}{_plain(middle)}{last and chr(92) + '-'}]"
    special = {"open": "(?:", "dot": "[^\\n\\r]", "end": "\\Z"}
    return special.get(kind) or (regex.escape(token) if kind == "char" else token)


def _plain(members: str) -> str:
    # `&&`, `||` and `~~` inside a class would be set operations to the engine one day.
    return regex.sub(r"(?<!\\)([&|~#^])", r"\\\1", members)


def _complaint(rest: str) -> str:
    if rest[0] == "\\":
        shown = rest[:2]
        instead = {"\\d": "[0-9]", "\\w": "[0-9A-Za-z_]", "\\s": "[ \\t\\n\\r]", "\\b": "(^|[^a-z])"}.get(shown)
        return f"{shown} is not in I-Regexp (RFC 9485)" + (f": write {instead}" if instead else "")
    if rest[0] in "*+?{":
        return f"nothing to repeat before '{rest[0]}'" if rest[0] != "{" else "'{' must be a repeat count, or \\{"
    return f"'{rest[0]}' is not allowed here in I-Regexp (RFC 9485)"


@lru_cache(maxsize=512)
def compiled(pattern: str) -> regex.Pattern[str] | None:
    """The compiled pattern, or None where it is not an I-Regexp."""
    try:
        return regex.compile(translate(pattern), regex.V0)
    except (PatternError, regex.error):
        return None


def matches(text: object, pattern: object, *, whole: bool) -> bool:
    """Whether `pattern` matches all of `text` (`whole`) or a part of it; False unless both are texts.

    Raises PatternTimeout after TIME_LIMIT_S seconds: an answer that depended on the machine's speed
    would not be one.
    """
    if type(text) is not str or type(pattern) is not str or (program := compiled(pattern)) is None:
        return False
    try:
        found = (program.fullmatch if whole else program.search)(text, timeout=TIME_LIMIT_S)
    except TimeoutError:
        raise PatternTimeout(
            f"the pattern {pattern!r} took more than {TIME_LIMIT_S:.0f} s on a text of {len(text)} characters"
        ) from None
    return found is not None
