"""Whole chats in one text: which marks announce the speakers.

User: hello            marks at the beginning of lines
<|im_start|>user ...   marks anywhere
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from draftmill.inspect.conversation import role_meant

ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "</s>")
CHAT_SHARE = 0.9
_AT_LINE = re.compile(r"^[ \t]*(?P<mark>(?P<label>[A-Za-z]+(?: [A-Za-z]+)?):)", re.MULTILINE)
_ANYWHERE = re.compile(r"(?P<mark>### ?(?P<label>[A-Za-z]+):|<\|im_start\|>(?P<chatml>\w+)|<\|(?P<tag>\w+)\|>)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Speakers:
    """The marks by role, whether they stand at lines or anywhere, and end marks to strip."""

    marks: dict[str, list[str]]
    at: str
    strip: list[str]

    def declaration(self) -> dict[str, object]:
        """The value of `split`."""
        marks = {role: found[0] if len(found) == 1 else found for role, found in self.marks.items()}
        return {**marks, "at": self.at, **({"strip": self.strip} if self.strip else {})}


def find_speakers(texts: Iterable[str]) -> Speakers | None:
    """The marks, if at least 90 % of the texts are chats of a user and an assistant."""
    listed = [text for text in texts if text.strip()]
    for pattern, at in ((_ANYWHERE, "any"), (_AT_LINE, "line")):
        marks, chats = _marks(listed, pattern)
        if chats and chats >= CHAT_SHARE * len(listed):
            strip = [end for end in ENDS if any(end in text for text in listed)]
            return Speakers(marks=marks, at=at, strip=strip)
    return None


def starts_with_mark(texts: Iterable[str]) -> str | None:
    """The system mark that every text begins with (`SYSTEM:`), or None."""
    found = Counter(
        match["mark"] if (match := _AT_LINE.match(text)) and role_meant(match["label"]) == "system" else ""
        for text in texts
        if text
    )
    return next(iter(found)) or None if len(found) == 1 else None


def _marks(texts: list[str], pattern: re.Pattern[str]) -> tuple[dict[str, list[str]], int]:
    """(marks by role, how many texts begin with one and hold both sides)."""
    marks: dict[str, dict[str, None]] = {}
    chats = 0
    for text in texts:
        roles: set[str] = set()
        begins = False
        for match in pattern.finditer(text):
            role = _role(match)
            if role is not None:
                begins = begins or (not roles and not text[: match.start()].strip())
                roles.add(role)
                marks.setdefault(role, {})[match["mark"]] = None
        chats += begins and {"user", "assistant"} <= roles
    return {role: list(found) for role, found in marks.items()}, chats


def _role(match: re.Match[str]) -> str | None:
    label = next(value for name, value in match.groupdict().items() if name != "mark" and value)
    whole = role_meant(label)
    # FUNCTION RESPONSE, TOOL RESULT: what a tool says
    return whole or ("tool" if role_meant(label.split()[0]) == "tool" else None)
