"""A whole chat in one string, cut at the markers of its speakers."""

from __future__ import annotations

import re
from collections.abc import Callable

from draftmill.extract.outcome import Rejected
from draftmill.extract.schema import Split


def splitter(split: Split) -> Callable[[str], list[tuple[str, str]]]:
    """A function from a text to its (role, text) turns, stripped; turns that are to be dropped are left out.

    It raises Rejected for text before the first marker, unless `prefix` is "drop".
    """
    roles = dict(split.markers)
    # Longer markers first: "USER 2:" before "USER".
    names = "|".join(re.escape(marker) for marker in sorted(roles, key=lambda marker: (-len(marker), marker)))
    pattern = re.compile(rf"^[ \t]*({names})" if split.at == "line" else f"({names})", re.MULTILINE)

    def cut(text: str) -> list[tuple[str, str]]:
        pieces = pattern.split(text)
        if split.prefix == "reject" and _clean(pieces[0], split.strip):
            raise Rejected("text_before_speaker")
        turns = zip(pieces[1::2], pieces[2::2], strict=True)
        return [(roles[name], _clean(said, split.strip)) for name, said in turns if roles[name] != "drop"]

    return cut


def _clean(text: str, strip: tuple[str, ...]) -> str:
    """`text` without blanks and the words of `strip` at its ends."""
    text = text.strip()
    changed = True
    while changed:
        before = text
        for word in strip:
            text = text.removeprefix(word).removesuffix(word).strip()
        changed = text != before
    return text
