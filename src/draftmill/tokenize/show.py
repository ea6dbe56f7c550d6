"""`draftmill show`: one row on its way through the pipeline, and tokens coloured for people."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftmill.config import declared, section
from draftmill.console import printable, say
from draftmill.errors import BuildError, DataError, UsageError, did_you_mean
from draftmill.pipeline import repro
from draftmill.target import Renderer, Target, renderer
from draftmill.tokenize.colours import pieces
from draftmill.workspace import BUILD

if TYPE_CHECKING:
    from draftmill.extract.schema import Schema

TABLES = {"extract": "rows", "generate": "answers", "tokenize": "tokens"}


def show(dataset: str, row: str | None, stage: str | None) -> None:
    """Print a row's stages: raw, extract, generate, template, tokenize; all that are there, or one.

    `row`: its id, or None for the first. Raises UsageError for unknown names, DataError for an unknown row.
    """
    declared(dataset)
    if stage is not None and stage not in _STAGES:
        raise UsageError(f"no stage '{stage}' to show", fix=did_you_mean(stage, _STAGES))
    name = row if row is not None else _first_id(dataset)
    found = {each: _STAGES[each](dataset, name) for each in ([stage] if stage else _STAGES)}
    for each, lines in found.items():
        if lines is not None:
            say(f"── {each} " + "─" * 60)
            lines()
    if not any(found.values()):
        raise DataError(
            f"no row '{name}'", file=str(BUILD / (stage or "extract") / dataset), fix="see its rejects.jsonl"
        )


def coloured(renderer: Renderer, input_ids: Sequence[int], runs: Sequence[tuple[int, int]]) -> None:
    """Print a row's text, trainable tokens in green on a terminal and in ⟦brackets⟧ elsewhere."""
    shown = [(printable(text), trains) for text, trains in pieces(renderer, input_ids, runs)]
    if not sys.stdout.isatty():
        print("".join(f"⟦{text}⟧" if trains else text for text, trains in shown))
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text.assemble(*((text, "bold green" if on else "dim") for text, on in shown)))


def find(dataset: str, stage: str, row: str) -> list[dict[str, Any]]:
    """The rows of a stage's table that came from row `row`: itself and those that were split off."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = BUILD / stage / dataset / f"{TABLES[stage]}.parquet"
    if not file.exists():
        return []
    table = pq.read_table(file, filters=(pc.field("id") == row) | pc.starts_with(pc.field("id"), f"{row}#"))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def _first_id(dataset: str) -> str:
    import pyarrow.parquet as pq

    for stage in reversed(TABLES):
        file = BUILD / stage / dataset / f"{TABLES[stage]}.parquet"
        if file.exists():
            for batch in pq.ParquetFile(file).iter_batches(1, columns=["id"]):
                return str(batch["id"][0])
    raise BuildError("nothing is built yet", file=str(BUILD), fix=repro("tokenize", dataset))


def _raw(dataset: str, row: str) -> Callable[[], None] | None:
    """The row as its file has it, found by mapping the source once more."""
    from draftmill.extract.declaration import load
    from draftmill.extract.readers import ChunkReader, Reject, chunks

    declared = load(dataset)
    ids = _Ids(declared.schema)
    lines: Counter[str] = Counter()  # of each file, in the chunks gone through
    for chunk in chunks(declared.source):
        reader = ChunkReader(chunk)
        for number, item in reader:
            text = json.dumps(item, ensure_ascii=False, indent=2) if not isinstance(item, Reject) else ""
            if text and row in ids.of(item, chunk.arrow):
                place = f"{chunk.file}, {chunk.unit} {lines[chunk.file] + number}"
                return lambda: say(f"{place}\n{text}")
        lines[chunk.file] += reader.count
    return None


class _Ids:
    """The ids that extract gives to the rows made of one raw row."""

    def __init__(self, schema: Schema) -> None:
        from draftmill.extract.rows import Engine

        self._engine = Engine(schema, None)

    def of(self, item: Any, arrow: bool) -> list[str]:
        """Empty for a row that extract drops. Decodes `item` in place."""
        from draftmill.extract.outcome import Candidates, Rejected, Work

        work, found = Work(arrow=arrow), Candidates()
        try:
            if self._engine.prepare(item, work) is None:
                self._engine.convert(item, work, found)
        except Rejected:
            pass
        return [row[0] for row in found.rows]


def _conversation(stage: str) -> Callable[[str, str], Callable[[], None] | None]:
    def shown(dataset: str, row: str) -> Callable[[], None] | None:
        found = find(dataset, stage, row)
        return (lambda: _messages(found[0])) if found else None

    return shown


def _messages(row: dict[str, Any]) -> None:
    turns = {turn["position"]: turn for turn in json.loads(row.get("turns") or "[]")}
    if row["tools"]:
        say(f"tools: {row['tools']}")
    for position, message in enumerate(json.loads(row["conversation"])):
        turn = turns.get(position, {})
        notes = [turn.get("origin"), turn.get("finish_reason"), *(turn.get("flags") or [])]
        say(f"[{position}] {message['role']} {' '.join(str(note) for note in notes if note)}".rstrip())
        for key in ("reasoning", "content", "tool_calls"):
            if message.get(key):
                text = message[key] if isinstance(message[key], str) else json.dumps(message[key], ensure_ascii=False)
                say(f"    {key}: {text}" if key != "content" else "    " + text.replace("\n", "\n    "))


def _template(dataset: str, row: str) -> Callable[[], None] | None:
    found = find(dataset, "generate", row) or find(dataset, "extract", row)
    if not found:
        return None
    tools = json.loads(found[0]["tools"]) if found[0]["tools"] else None
    shown = renderer(section("target", Target))
    return lambda: say(shown.text(json.loads(found[0]["conversation"]), tools, False))


def _tokens(dataset: str, row: str) -> Callable[[], None] | None:
    found = find(dataset, "tokenize", row)
    if not found:
        return None
    masks = {one["id"]: one for one in _masks(dataset, [each["id"] for each in found])}
    shown = renderer(section("target", Target))

    def lines() -> None:
        for each in found:
            runs = [(run["start"], run["length"]) for run in masks[each["id"]]["loss_mask"]]
            say(f"{each['id']}: {len(each['input_ids'])} tokens, {masks[each['id']]['n_trainable']} trainable")
            coloured(shown, each["input_ids"], runs)

    return lines


def _masks(dataset: str, ids: list[str]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    file = Path(BUILD, "tokenize", dataset, "mask.parquet")
    found: list[dict[str, Any]] = pq.read_table(file, filters=[("id", "in", ids)]).to_pylist()
    return found


_STAGES: dict[str, Callable[[str, str], Callable[[], None] | None]] = {
    "raw": _raw,
    "extract": _conversation("extract"),
    "generate": _conversation("generate"),
    "template": _template,
    "tokenize": _tokens,
}
