"""The errors of the path language."""

from __future__ import annotations


class PathError(ValueError):
    """A path that cannot be read.

    Attributes: `message` (one sentence), `text` (the path) and `position` (the offset in `text`, from 0,
    of the character at fault; the length of `text` where something is missing at its end).
    """

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message, text, position)
        self.message, self.text, self.position = message, text, position

    def __str__(self) -> str:
        line = self.text.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        return f"{self.message} (at character {self.position + 1})\n    {line}\n    {' ' * self.position}^"


class PatternTimeout(ValueError):
    """A pattern of `match` or `search` took longer than the limit on one text."""
