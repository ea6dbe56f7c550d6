"""tokenize@d: answers.parquet in; tokens.parquet, mask.parquet, metrics.json and rejects.jsonl out, chunk by chunk.

Tokens and mask are two files because hidden states depend on tokens only: another mask computes no state again.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from draftmill.config import params, section
from draftmill.console import excerpt, progress, say
from draftmill.errors import BuildError, DataError
from draftmill.files import digest, parquet_writer, record_run, write_jsonl, write_metrics
from draftmill.lineage import SIZE, lineage, of_target
from draftmill.target import Renderer, RenderError, Target, renderer
from draftmill.tokenize.limits import fit
from draftmill.tokenize.mask import Mask, common_prefix
from draftmill.tokenize.rows import Answered, Tokenized, Tokenizer, TokenRow
from draftmill.tokenize.statistics import Statistics
from draftmill.workspace import BUILD, output

CHUNK_ROWS = 256
_SPAN = pa.struct(
    [("turn", pa.int32()), ("start", pa.int32()), ("end", pa.int32()), ("origin", pa.string()), ("flag", pa.float32())]
)
TOKENS = pa.schema(
    [
        ("id", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("spans", pa.list_(_SPAN)),
        ("group", pa.string()),
        ("dedup", pa.string()),
        ("n_prompt_tokens", pa.int32()),
        ("n_response_tokens", pa.int32()),
    ]
)
_RUN = pa.struct([("start", pa.int32()), ("length", pa.int32())])
MASK = pa.schema([("id", pa.string()), ("loss_mask", pa.list_(_RUN)), ("n_trainable", pa.int32())])


def build(dataset: str) -> None:
    """Run the stage for one dataset. Raises DataError if no row comes through, or too many train nothing."""
    declared = params()["datasets"][dataset]
    mask = Mask.read(declared["mask"], dataset)
    started = time.monotonic()
    work = Work(renderer(section("target", Target)), mask)
    target = of_target(work.renderer.target, work.renderer.digest)
    made_from = lineage(dataset=dataset, declaration=digest(declared["mask"], SIZE), target=target)
    work.write(BUILD / "generate" / dataset / "answers.parquet", output("tokenize", dataset), made_from)
    record_run("tokenize", dataset, seconds=round(time.monotonic() - started, 3), rows=work.statistics.rows)
    say(f"tokenize {dataset}: {work.statistics.line()}")
    work.check(dataset, expected_yield((declared.get("schema") or {}).get("expect")))


def expected_yield(expect: Any) -> float:
    """The share of rows that must be good, from `schema.expect`."""
    return float((expect or {}).get("yield", 0.99))


class Work:
    """One dataset's pass."""

    def __init__(self, shown: Renderer, mask: Mask) -> None:
        self.renderer, self.mask = shown, mask
        self.tokenizer = Tokenizer(shown)
        self.statistics = Statistics(shown)
        self.dropped: Counter[str] = Counter()
        self.rejects: list[dict[str, str]] = []

    def write(self, answers: Path, folder: Path, lineage: Mapping[str, Any]) -> None:
        """Tokenize every row of `answers` into `folder`."""
        if not answers.exists():
            raise BuildError("not there yet", file=answers, fix="run `dvc repro`")
        source = pq.ParquetFile(answers)
        total = source.metadata.num_rows
        with (
            parquet_writer(folder / "tokens.parquet", TOKENS) as tokens,
            parquet_writer(folder / "mask.parquet", MASK) as masks,
            progress("tokenize", total) as shown,
        ):
            for batch in source.iter_batches(CHUNK_ROWS):
                rows = [row for result in self.chunk(batch.to_pylist()) for row in self._finish(result)]
                tokens.write_table(pa.Table.from_pylist([token for token, _ in rows], TOKENS))
                masks.write_table(pa.Table.from_pylist([mask for _, mask in rows], MASK))
                shown.advance(batch.num_rows)
        write_jsonl(folder / "rejects.jsonl", self.rejects)
        kept = total - sum(self.dropped.values())
        write_metrics(folder, total, kept, self.dropped, **self.statistics.figures(), lineage=lineage)

    def chunk(self, rows: list[dict[str, Any]]) -> list[Tokenized]:
        """The conversations of some rows of answers.parquet, tokenized."""
        return self.tokenizer.chunk([Answered.read(row) for row in rows])

    def _finish(self, result: Tokenized) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Rows of the two tables for one conversation; what is dropped is counted."""
        target, row = self.renderer.target, result.answered
        fitted = [part for whole in result.rows for part in fit(whole, target.max_seq_len, target.over_length)]
        if not result.reason and not fitted:
            longest = max(len(whole.input_ids) for whole in result.rows)
            result.reason, result.detail = "too_long", f"{longest} tokens, max_seq_len {target.max_seq_len}"
        if result.reason:
            self.dropped[result.reason] += 1
            self.rejects.append({"id": row.id, "reason": result.reason, "excerpt": excerpt(result.detail, 200)})
            return
        trainable = 0
        for index, part in enumerate(fitted):
            runs = self.mask.runs(part, row.last_turn, self._system_tokens(row, part))
            length = sum(count for _, count in runs)
            trainable += length
            identity = f"{row.id}#{index}" if index else row.id
            yield _token_columns(identity, row, part), _mask_columns(identity, runs, length)
        self.statistics.add(result, fitted, trainable)

    def _system_tokens(self, row: Answered, part: TokenRow) -> int:
        """How many tokens of the row belong to leading system turns; only `non_system` asks."""
        count = next((i for i, m in enumerate(row.messages) if m["role"] != "system"), len(row.messages))
        if self.mask.policy != "non_system" or not count:
            return 0
        try:
            text = self.renderer.text(row.messages[:count], row.tools, False)
        except RenderError:
            return 0
        return common_prefix(self.renderer.encode(text), part.input_ids)

    def check(self, dataset: str, wanted: float) -> None:
        """Raises DataError if nothing came through, or more rows than `expect` allows have nothing to train."""
        file = f"conf/dataset/{dataset}.yaml"
        seen = self.statistics.conversations
        if not seen and self.dropped:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self.dropped.most_common())
            first = self.rejects[0]["excerpt"]
            raise DataError("no row could be tokenized", file=file, found=f"{reasons}; first: {first}")
        empty = self.statistics.empty
        if empty > math.ceil(seen * (1 - wanted)):
            found = f"{empty} of {seen} rows have no token to train"
            fix = "choose another mask, or allow it with schema.expect.yield"
            raise DataError(
                f"the mask '{self.mask.policy}' trains too little", file=file, key="mask", found=found, fix=fix
            )


def _token_columns(identity: str, row: Answered, part: TokenRow) -> dict[str, Any]:
    response = sum(span.end - span.start for span in part.spans)
    spans = [
        {"turn": span.turn, "start": span.start, "end": span.end, "origin": span.origin, "flag": span.flag}
        for span in part.spans
    ]
    return {
        "id": identity,
        "input_ids": part.input_ids,
        "spans": spans,
        "group": row.group,
        "dedup": row.dedup,
        "n_prompt_tokens": len(part.input_ids) - response,
        "n_response_tokens": response,
    }


def _mask_columns(identity: str, runs: list[tuple[int, int]], trainable: int) -> dict[str, Any]:
    shown = [{"start": start, "length": length} for start, length in runs]
    return {"id": identity, "loss_mask": shown, "n_trainable": trainable}
