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
MAX_REPEAT = 1000

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
    out, position, depth, repeatable = [], 0, 0, False
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        kind = token.lastgroup if token else None
        depth += {"open": 1, "close": -1}.get(kind or "", 0)
        if token is None or depth < 0 or (kind == "repeat" and not repeatable):
            raise PatternError(_complaint(pattern[position:]), position)
        out.append(_rewrite(kind, token.group(), position))
        repeatable = kind in ("category", "escape", "class", "close", "dot", "char")
        position = token.end()
    if depth:
        raise PatternError("a ')' is missing", position)
    return "".join(out)


def _rewrite(kind: str | None, token: str, position: int) -> str:
    if kind == "class":
        parts = _CLASS.fullmatch(token)
        if parts is None or token in ("[]", "[^]"):
            raise PatternError(f"{token} is not a character class", position)
        negated, first, middle, last = parts.groups()
        return f"[{negated}{first and chr(92) + '-'}{_plain(middle)}{last and chr(92) + '-'}]"
    if kind == "repeat" and any(int(n) > MAX_REPEAT for n in regex.findall(r"\d+", token)):
        raise PatternError(f"a repeat count may be {MAX_REPEAT} at most", position)
    special = {"open": "(?:", "dot": "[^\\n\\r]", "end": "\\Z"}
    return special.get(kind or "") or (regex.escape(token) if kind == "char" else token)


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
