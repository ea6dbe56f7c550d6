"""From the store to answers.parquet: the same conversations again, in the order of ids, without an engine.

Nothing here depends on when, in which order or by whom the answers were given: the bytes are those of an
undisturbed run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from draftmill.console import excerpt
from draftmill.files import parquet_writer, write_jsonl, write_metrics
from draftmill.generate.converse import Told
from draftmill.generate.dialogue import Message
from draftmill.generate.request import RowError
from draftmill.generate.rows import ExtractedRow
from draftmill.generate.session import Row
from draftmill.generate.statistics import Lengths
from draftmill.generate.store import Store

_IDS = pa.list_(pa.list_(pa.int32()))
_TEXTS = {"id": False, "conversation": False, "tools": True, "group": True, "dedup": True, "meta": True, "turns": False}
SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=nullable) for name, nullable in _TEXTS.items()]
    + [pa.field("prompt_ids", _IDS), pa.field("output_ids", _IDS)]
)
_GROUP_ROWS = 1024


class Assembly:
    """Writes one dataset's outputs; rows come in the order of their ids."""

    def __init__(self, folder: Path) -> None:
        self.taken = 0
        self._folder = folder
        self._dropped: Counter[str] = Counter()
        self._rejects: list[dict[str, str]] = []
        self._flags: Counter[str] = Counter()
        self._finish: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._lengths = Lengths()

    def write(
        self,
        rows: Iterable[tuple[ExtractedRow, Told | RowError]],
        *,
        requested: Mapping[str, int | None],
        available: int,
        unasked: int,
        lineage: Mapping[str, Any],
    ) -> None:
        """Write answers.parquet, rejects.jsonl and metrics.json.

        Args:
            rows: the rows that the quota takes, each with what was told or why nothing was.
            requested: what the quota asks for, as it stands in metrics.json.
            available: rows there are, of which the quota leaves out `unasked`.
            lineage: what the answers were made from.
        """
        with _writer(self._folder / "answers.parquet") as add:
            for row, outcome in rows:
                if isinstance(outcome, Told):
                    add(self._record(row, outcome))
                else:
                    self._reject(row, outcome)
        write_jsonl(self._folder / "rejects.jsonl", self._rejects)
        dropped = {"quota": unasked, **self._dropped}
        figures = {
            **requested,
            "available": available,
            "taken": self.taken,
            "flags": dict(sorted(self._flags.items())),
            "finish": dict(sorted(self._finish.items())),
            "ended_early": dict(sorted(self._ended.items())),
            **self._lengths.summary(),
            "lineage": lineage,
        }
        write_metrics(self._folder, available, self.taken, dropped, **figures)

    def _record(self, row: ExtractedRow, told: Told) -> dict[str, Any]:
        self.taken += 1
        if told.ended:
            self._ended[told.ended] += 1
        for _, request, answer, flags in told.turns:
            self._flags.update(flags)
            self._finish[answer.finish] += 1
            self._lengths.add(len(request.prompt_ids), answer.tokens)
        exact = bool(told.turns) and all(answer.output_ids is not None for _, _, answer, _ in told.turns)
        return {
            "id": row.id,
            "conversation": _json(told.said),
            "tools": row.tools,
            "group": row.group,
            "dedup": row.dedup,
            "meta": row.meta,
            "turns": _json(list(turns(told))),
            "prompt_ids": [request.prompt_ids for _, request, _, _ in told.turns] if exact else None,
            "output_ids": [answer.output_ids for _, _, answer, _ in told.turns] if exact else None,
        }

    def _reject(self, row: ExtractedRow, error: RowError) -> None:
        self._dropped[error.reason] += 1
        self._rejects.append({"id": row.id, "reason": error.reason, "excerpt": excerpt(str(error), 200)})


def turns(told: Told) -> Iterator[dict[str, Any]]:
    """One entry for each assistant turn, in order; `key` and `limit` let the store be filled from the file."""
    generated = {position: (request, answer, flags) for position, request, answer, flags in told.turns}
    for position, message in enumerate(told.said):
        if position in generated:
            request, answer, flags = generated[position]
            yield {
                "position": position,
                "origin": "generated",
                "finish_reason": answer.finish,
                "usage": answer.usage,
                "engine": answer.engine,
                "flags": list(flags),
                "key": request.key,
                "limit": answer.limit,
            }
        elif message["role"] == "assistant":
            yield {"position": position, "origin": "dataset", "finish_reason": None, "usage": None, "engine": None} | {
                "flags": list[str]()
            }


def replay(row: Row, store: Store, failures: Mapping[str, RowError]) -> Told | RowError:
    """What a session told, from the store and the failures it counted. Raises KeyError for an unasked question."""
    try:
        request = next(row)
        while True:
            answer = store.get(request.key, request.limit)
            request = row.send(answer) if answer is not None else row.throw(failures[request.key])
    except StopIteration as told:
        return told.value
    except RowError as error:
        return error


def recorded(conversation: list[Message]) -> Told:
    """A row whose answers are the dataset's own."""
    return Told(said=conversation)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


@contextmanager
def _writer(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that adds a row, written in groups of 1,024."""
    waiting: list[dict[str, Any]] = []
    with parquet_writer(path, SCHEMA) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(waiting, schema=SCHEMA))
            waiting.clear()

        def add(row: dict[str, Any]) -> None:
            waiting.append(row)
            if len(waiting) == _GROUP_ROWS:
                flush()

        yield add
        flush()
