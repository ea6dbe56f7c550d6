"""Whole chats in one text: which marks announce the speakers.

User: hello            marks at the beginning of lines
<|im_start|>user ...   marks anywhere
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from draftmill.inspect.conversation import role_meant

ENDS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "</s>", "<end_of_turn>", "<eos>",
    "<|begin_of_text|>", "<s>", "<bos>",
)  # fmt: skip
"""What chat templates put around turns and texts."""
CHAT_SHARE = 0.9
MAX_SPEAKERS = 4
SEVERAL = 50
_AT_LINE = re.compile(r"^[ \t]*(?P<mark>(?P<label>[A-Za-z]+(?: [A-Za-z]+)?):)", re.MULTILINE)
_ANYWHERE = re.compile(
    r"(?P<mark>### ?(?P<label>[A-Za-z]+):|<\|im_start\|>(?P<chatml>\w+)"
    r"|<\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>|<start_of_turn>(?P<gemma>\w+)|\[\|(?P<baize>\w+)\|\]|(?P<inst>\[/?INST\]|<</?SYS>>)|<\|(?P<tag>\w+)\|>)"
)
_IN_LINE = re.compile(r"(?<!\w)(?P<mark>(?P<label>USER|ASSISTANT|SYSTEM|User|Assistant|Human|AI|Bot):)")
_INST = {"[INST]": "user", "[/INST]": "assistant", "<<SYS>>": "system", "<</SYS>>": "user"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Speakers:
    """The marks by role, whether they stand at lines or anywhere, and what to strip; `before`: text ahead of them."""

    marks: dict[str, list[str]]
    at: str
    strip: list[str]
    before: str = ""
    notes: list[str] = field(default_factory=list)

    def declaration(self) -> dict[str, object]:
        """The value of `split`."""
        marks = {role: found[0] if len(found) == 1 else found for role, found in self.marks.items()}
        options = {"prefix": "drop" if self.before else "", "strip": self.strip}
        return {**marks, "at": self.at, **{name: value for name, value in options.items() if value}}


def find_speakers(texts: Iterable[str]) -> Speakers | None:
    """The marks, if at least 90 % of the texts are chats of a user and an assistant."""
    listed = [text for text in texts if text.strip()]
    strip = [end for end in ENDS if any(end in text for text in listed)]
    for pattern, at, prefixed in ((_ANYWHERE, "any", True), (_AT_LINE, "line", False), (_IN_LINE, "any", True)):
        marks, prefixes = _marks(listed, pattern, strip)
        chats = sum(prefixed or not prefix for prefix in prefixes)
        if chats and chats >= CHAT_SHARE * len(listed):
            before = Counter(filter(None, prefixes)).most_common(1)
            return _speakers(marks, at, strip, before[0][0] if before and prefixed else "")
    return None


def _speakers(marks: dict[str, list[str]], at: str, strip: list[str], before: str) -> Speakers:
    notes = [f"what stands before the first mark is left out ({before[:60]!r} …): it may be a system text"]
    return Speakers(marks=marks, at=at, strip=strip, before=before, notes=notes if before else [])


def unknown_speakers(texts: list[str]) -> list[str]:
    """Marks at lines that announce two to four speakers in nearly all texts, though nobody knows their labels."""
    texts = texts[:SEVERAL]
    seen = [list(dict.fromkeys(match["mark"] for match in _AT_LINE.finditer(text))) for text in texts]
    counts = Counter(mark for marks in seen for mark in marks)
    marks = [mark for mark, count in counts.items() if count >= CHAT_SHARE * len(texts)]
    talks = sum(bool(found) and text.lstrip().startswith(found[0]) for found, text in zip(seen, texts, strict=True))
    return marks if 2 <= len(marks) <= MAX_SPEAKERS and talks >= CHAT_SHARE * len(texts) > 1 else []


def starts_with_mark(texts: Iterable[str]) -> str | None:
    """The system mark that every text begins with (`SYSTEM:`), or None."""
    found = Counter(
        match["mark"] if (match := _AT_LINE.match(text)) and role_meant(match["label"]) == "system" else ""
        for text in texts
        if text
    )
    return next(iter(found)) or None if len(found) == 1 else None


def _marks(texts: list[str], pattern: re.Pattern[str], strip: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """(marks by role, for each text that holds both sides what stands before the first mark)."""
    marks: dict[str, dict[str, None]] = {}
    prefixes = []
    for text in texts:
        roles: dict[str, int] = {}
        seen: set[str] = set()
        for match in pattern.finditer(text):
            if match["mark"] in seen:
                continue
            seen.add(match["mark"])
            role = _role(match)
            if role is not None:
                roles.setdefault(role, match.start())
                marks.setdefault(role, {})[match["mark"]] = None
        if {"user", "assistant"} <= roles.keys():
            prefix = text[: min(roles.values())]
            for word in strip:
                prefix = prefix.replace(word, "")
            prefixes.append(prefix.strip())
    return {role: list(found) for role, found in marks.items()}, prefixes


def _role(match: re.Match[str]) -> str | None:
    label = next(value for name, value in match.groupdict().items() if name != "mark" and value)
    whole = _INST.get(label) or role_meant(label)
    # FUNCTION RESPONSE, TOOL RESULT: what a tool says
    return whole or ("tool" if role_meant(label.split()[0]) == "tool" else None)
