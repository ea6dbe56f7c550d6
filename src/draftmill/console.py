"""What a person sees: plain lines, or rich progress on a terminal; never a raw control character.

Data rows are data: every text that comes from a row passes `printable` before it is shown.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# C0 without tab and newline, DEL, C1, and the bidirectional overrides that can hide text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PLAIN_INTERVAL_S = 60.0


def printable(text: str) -> str:
    """`text` with control characters written as escapes, so that data cannot drive a terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def excerpt(text: str, limit: int = 80) -> str:
    """One printable line of at most `limit` characters."""
    line = printable(text.replace("\n", "\\n"))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def say(text: str) -> None:
    """Print one line of the program's own words on standard output, at once."""
    print(printable(text), flush=True)


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]], total: Sequence[str] | None = None) -> str:
    """A plain table: the first column flush left, the others right, rules below the header and above `total`."""
    every = [header, *lines, *([total] if total else [])]
    widths = [max(len(line[i]) for line in every) for i in range(len(header))]

    def text(line: Sequence[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        return "  ".join((line[0].ljust(widths[0]), *rest)).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([text(header), rule, *map(text, lines), *([rule, text(total)] if total else [])])


class Progress:
    """Counts done units; shows a bar on a terminal, one plain line a minute otherwise."""

    def __init__(self, description: str, total: int | None, unit: str) -> None:
        self.description, self.total, self.unit, self.done, self.note = description, total, unit, 0, ""
        self._started = self._printed = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(description, total=total)
            self._bar.start()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Add `count` finished units; `note` is shown beside the count."""
        self.done, self.note = self.done + count, note or self.note
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, description=f"{self.description} {self.note}")
        elif time.monotonic() - self._printed >= PLAIN_INTERVAL_S:
            self._printed = time.monotonic()
            print(printable(self.line()), file=sys.stderr, flush=True)

    def line(self) -> str:
        """`description: done/total unit, rate, time left, note`."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = self.done / seconds
        of = f"/{self.total}" if self.total else ""
        left = f", {(self.total - self.done) / rate:.0f} s left" if self.total and rate else ""
        note = f", {self.note}" if self.note else ""
        return f"{self.description}: {self.done}{of} {self.unit}, {rate:.1f}/s{left}{note}"

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress(description: str, total: int | None = None, unit: str = "rows") -> Iterator[Progress]:
    """A Progress that is closed on leaving, also by an exception."""
    shown = Progress(description, total, unit)
    try:
        yield shown
    finally:
        shown.close()
