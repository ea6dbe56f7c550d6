"""Re-checks a dataset's answers: ids against text, counts against usage, prompts against the template, structure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow.parquet as pq

from draftmill.errors import BuildError
from draftmill.generate.job import Settings
from draftmill.generate.request import Answer
from draftmill.generate.restore import earlier_answers
from draftmill.generate.store import Store
from draftmill.generate.talk import Talk
from draftmill.pipeline import repro

Findings = dict[str, list[str]]


def audit(dataset: str, settings: Settings, store: Store) -> tuple[int, Findings]:
    """(turns looked at, finding -> row ids). Raises BuildError if the dataset has no answers yet.

    Findings: `not in the store`, `text differs from ids`, `prompt differs from the template`, `usage`, `ending`
    (a turn that stopped without an end token, or was cut with one), `flags differ`, `structure`.
    """
    path = earlier_answers(dataset)
    if path is None:
        raise BuildError("no answers yet", file=f"build/generate/{dataset}", fix=repro("generate", dataset))
    auditor = _Auditor(Talk(settings), store)
    turns, found = 0, defaultdict[str, list[str]](list)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(256):
            for row in batch.to_pylist():
                for finding in auditor.row(row):
                    found[finding].append(row["id"])
                turns += auditor.turns
    return turns, dict(found)


class _Auditor:
    def __init__(self, talk: Talk, store: Store) -> None:
        self._renderer, self._judge, self._store = talk.renderer, talk.judge, store
        self.turns = 0

    def row(self, row: dict[str, Any]) -> Iterator[str]:
        said, turns = orjson.loads(row["conversation"]), orjson.loads(row["turns"])
        tools = orjson.loads(row["tools"]) if row["tools"] else None
        if [turn["position"] for turn in turns] != [i for i, m in enumerate(said) if m["role"] == "assistant"]:
            yield "structure"
        generated = [turn for turn in turns if turn["origin"] == "generated"]
        self.turns = len(generated)
        prompts, outputs = row["prompt_ids"] or [], row["output_ids"] or []
        for number, turn in enumerate(generated):
            ids = outputs[number] if number < len(outputs) else None
            yield from self._turn(turn, said, tools, prompts[number] if number < len(prompts) else None, ids)

    def _turn(
        self, turn: dict[str, Any], said: list[Any], tools: list[Any] | None, prompt: Any, ids: list[int] | None
    ) -> Iterator[str]:
        stored = self._store.get(turn["key"], turn["limit"])
        if stored is None:
            yield "not in the store"
        message = said[turn["position"]]
        answer = _answer(turn, message, ids)
        parsed, flags = self._judge(answer, tools)
        if parsed != message or (stored is not None and not self._same_text(stored)):
            yield "text differs from ids"
        if prompt is not None and prompt != self._renderer.prompt_ids(said[: turn["position"]], tools):
            yield "prompt differs from the template"
        if "usage" in flags:
            yield "usage"
        if ids is not None and (turn["finish_reason"] == "stop") != bool(ids and ids[-1] in self._renderer.eos_ids):
            yield "ending"
        if list(flags) != turn["flags"]:
            yield "flags differ"

    def _same_text(self, stored: Answer) -> bool:
        """Whether the text a server gave beside the ids is theirs, special tokens at the end aside."""
        if stored.output_ids is None or stored.text is None:
            return True
        return self._renderer.parse(stored.output_ids) == self._renderer.parse(stored.text)


def _answer(turn: dict[str, Any], message: dict[str, Any], ids: list[int] | None) -> Answer:
    return Answer(
        finish=turn["finish_reason"],
        limit=turn["limit"],
        engine=turn["engine"],
        output_ids=ids,
        message=None if ids is not None else message,
        usage=turn["usage"],
    )
