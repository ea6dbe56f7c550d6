"""Held-out prompts: of each held-out conversation what stands before one of its assistant turns, chosen by hash."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from draftmill.errors import BuildError, DataError
from draftmill.evaluate import Evaluate
from draftmill.files import rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids that end with the generation prompt."""

    dataset: str
    id: str
    turn: int
    ids: list[int]


def read_prompts(path: Path, settings: Evaluate, seed: int) -> list[Prompt]:
    """At most `max_prompts` prompts of each dataset, in the order of datasets and ids.

    Raises DataError if no row is held out, or all prompts are too long.
    """
    import pyarrow.parquet as pq

    if not path.exists():
        raise BuildError("the blend is not there", file=path, fix="dvc repro blend")
    rows = pq.read_table(path, columns=["dataset", "id", "input_ids", "spans"]).to_pylist()
    rows.sort(key=lambda row: (row["dataset"], rank(seed, row["dataset"], row["id"])))
    taken: Counter[str] = Counter()
    prompts = []
    for row in rows:
        if taken[row["dataset"]] < settings.max_prompts and (prompt := _prompt(row, seed)):
            if len(prompt.ids) > settings.max_prompt_tokens:
                continue
            taken[row["dataset"]] += 1
            prompts.append(prompt)
    if not prompts:
        fix = "a larger blend.holdout.fraction, or evaluate.max_prompt_tokens"
        raise DataError(f"{len(rows)} held-out rows give no prompt", file=path, fix=fix)
    return sorted(prompts, key=lambda prompt: (prompt.dataset, prompt.id))


def _prompt(row: dict[str, object], seed: int) -> Prompt | None:
    spans, ids = row["spans"], row["input_ids"]
    assert isinstance(spans, list) and isinstance(ids, list)
    if not spans:
        return None
    dataset, name = str(row["dataset"]), str(row["id"])
    span = spans[rank(seed, f"{dataset} turn", name) % len(spans)]
    return Prompt(dataset=dataset, id=name, turn=span["turn"], ids=ids[: span["start"]])
