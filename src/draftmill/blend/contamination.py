"""Rows that hold a piece of an evaluation dataset: an n-gram of words in their user turns.

Words are lower-cased runs of letters and digits. An evaluation text with fewer than n words is matched as a
whole: its turn must be the same words and nothing else. Words that no evaluation text has cannot be part of a
match, so most of a row is skipped by one look-up a word; candidates are compared word by word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from draftmill.blend import Decontaminate
from draftmill.blend.rows import Rows
from draftmill.workspace import BUILD

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, lower-cased."""
    return _WORD.findall(text.lower())


@dataclass(slots=True)
class Grams:
    """The n-grams of evaluation texts; each remembers the row it came from as dataset/id."""

    size: int
    _grams: dict[tuple[str, ...], str] = field(default_factory=dict)
    _short: dict[tuple[str, ...], str] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def add(self, text: str, source: str) -> None:
        """Add an evaluation text."""
        found = words(text)
        if len(found) < self.size:
            if found:
                self._short.setdefault(tuple(found), source)
            return
        self._known.update(found)
        for start in range(len(found) - self.size + 1):
            self._grams.setdefault(tuple(found[start : start + self.size]), source)

    def match(self, text: str) -> tuple[str, str] | None:
        """(source, matched words) of the first n-gram of `text` that an evaluation text has, or None."""
        found = words(text)
        if len(found) < self.size:
            source = self._short.get(tuple(found))
            return (source, " ".join(found)) if source else None
        run = 0
        for end, word in enumerate(found, 1):
            run = run + 1 if word in self._known else 0
            if run >= self.size:
                gram = tuple(found[end - self.size : end])
                if source := self._grams.get(gram):
                    return source, " ".join(gram)
        return None


def user_texts(dataset: str) -> Iterator[tuple[str, list[str]]]:
    """(conversation id, texts of its user turns) of a dataset's extracted rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(BUILD / "extract" / dataset / "rows.parquet") as file:
        for batch in file.iter_batches(1024, columns=["id", "conversation"]):
            for row, text in zip(batch.column("id").to_pylist(), batch.column("conversation").to_pylist(), strict=True):
                turns = json.loads(text)
                yield row, [turn["content"] for turn in turns if turn["role"] == "user" and turn["content"]]


def drop_contaminated(datasets: Mapping[str, Rows], settings: Decontaminate, against: Sequence[str]) -> None:
    """Drop each row, held out or not, whose user turns share an n-gram with an evaluation dataset."""
    grams = Grams(settings.ngram)
    for name in against:
        for row, texts in user_texts(name):
            for text in texts:
                grams.add(text, f"{name}/{row}")
    for rows in datasets.values():
        inside = [*rows.inside(heldout=True), *rows.inside(heldout=False)]
        if not inside:
            continue
        matched = {row: _first(grams, texts) for row, texts in user_texts(rows.dataset)}
        for place in inside:
            if found := matched.get(rows.conversation(place, matched)):
                rows.drop(place, "contaminated", *found)


def _first(grams: Grams, texts: Sequence[str]) -> tuple[str, str] | None:
    return next(filter(None, map(grams.match, texts)), None)
