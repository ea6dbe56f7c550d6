"""One dataset's share of generate: which rows are wanted, and the conversations to be had with them.

job = Job(dataset, settings, renderer)
while block := job.next_block():          # one block, but for a quota in tokens
    lead every job.conversations(block)
job.taken()                               # what the quota keeps of what was asked
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from draftmill.config import build, declared, params, section
from draftmill.generate import quota as quotas
from draftmill.generate.converse import converse
from draftmill.generate.dialogue import Dialogue, Keep
from draftmill.generate.rows import ExtractedRow, Rows
from draftmill.generate.session import Row
from draftmill.generate.settings import Engine, GenerateRun, Machine, Sampling
from draftmill.workspace import BUILD

if TYPE_CHECKING:
    from draftmill.generate.checks import Judge
    from draftmill.generate.request import Prompter
    from draftmill.target import Target

_FIRST_BLOCK_ROWS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a dataset's declaration says to generate."""

    quota: Any
    answer_resolved: Literal["regenerate", "dataset"]
    keep_resolved: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The sections of params.yaml that generate reads."""

    target: Target
    engine: Engine
    sampling: Sampling
    run: GenerateRun
    machine: Machine
    seed: int
    quota_cap: int | None


def settings() -> Settings:
    """The composed configuration. Raises ConfigError that names file and key."""
    from draftmill.target import Target

    whole = params()
    machine = {name: whole["run"][name] for name in ("device", "threads") if name in whole["run"]}
    return Settings(
        target=section("target", Target),
        engine=section("engine", Engine),
        sampling=section("sampling", Sampling),
        run=section("run.generate", GenerateRun),
        machine=build(Machine, machine, file="params.yaml", key="run"),
        seed=whole["seed"],
        quota_cap=whole.get("quota_cap"),
    )


def wanted(dataset: str) -> Wanted:
    """What the configuration says of a dataset. Raises UsageError for an unknown name."""
    whole = declared(dataset)
    chosen = {name: whole[name] for name in ("quota", "answer_resolved", "keep_resolved")}
    return build(Wanted, chosen, file="params.yaml", key=f"datasets.{dataset}")


class Job:
    """The rows of one dataset that the quota may take, and how far they were asked."""

    def __init__(self, dataset: str, settings: Settings) -> None:
        declared, where = wanted(dataset), f"conf/dataset/{dataset}.yaml"
        self.dataset = dataset
        self.recorded = declared.answer_resolved == "dataset"
        self.rows = Rows(BUILD / "extract" / dataset / "rows.parquet")
        self.quota = quotas.parse(declared.quota, file=where, key="quota")
        self._keep: Keep = declared.keep_resolved
        ids = self.rows.ids()
        self.available = len(ids)
        strata = self.rows.strata(self.quota.by, file=where, key="quota.by") if self.quota.by else None
        self.candidates = quotas.select(
            ids, strata, self.quota, seed=settings.seed, dataset=dataset, cap=settings.quota_cap
        )
        self.requested = self._requested(len(set(strata)) if strata else 1, settings.quota_cap)
        self._strata: dict[str, list[int]] = defaultdict(list)
        for index in self.candidates:
            self._strata[strata[index] if strata else ""].append(index)
        # Answer tokens of each row; -1: not asked.
        self._told = array("i", [-1]) * self.available

    def _requested(self, strata: int, cap: int | None) -> dict[str, int | None]:
        """What the quota asks for, whether or not it is there: rows, or tokens."""
        if self.quota.tokens is not None:
            return {"requested": None, "requested_tokens": self.quota.tokens * strata}
        rows = self.quota.rows * strata if self.quota.rows is not None else len(self.candidates)
        return {"requested": rows if cap is None else min(rows, cap)}

    def next_block(self) -> list[int]:
        """Rows to ask next; [] when the quota is filled or the rows are used up."""
        return [index for stratum in self._strata.values() for index in self._next_of(stratum)]

    def taken(self) -> list[int]:
        """The rows that the quota keeps, after all blocks were asked."""
        if self.quota.tokens is None:
            return self.candidates
        return [index for stratum in self._strata.values() for index in stratum[: self._within(stratum)]]

    def conversations(self, indices: Collection[int], prompter: Prompter, judge: Judge) -> Iterator[tuple[int, Row]]:
        """(size, conversation) of rows, in the order of the file."""
        for index, row in self.rows.read(indices):
            yield row.size, self._counted(index, self.conversation(row, prompter, judge))

    def conversation(self, row: ExtractedRow, prompter: Prompter, judge: Judge) -> Row:
        """The conversation of one row."""
        dialogue = Dialogue(row.conversation, row.tool_list, self._keep)
        return converse(dialogue, prompter, judge, prompter.sampling.policy)

    def _counted(self, index: int, row: Row) -> Row:
        self._told[index] = 0
        told = yield from row
        self._told[index] = told.tokens
        return told

    def _next_of(self, stratum: list[int]) -> list[int]:
        """A quota in tokens asks a first block, then as many rows as the mean so far says are missing."""
        asked = next((i for i, index in enumerate(stratum) if self._told[index] < 0), len(stratum))
        if self.quota.tokens is None:
            return stratum[asked:]
        total = sum(self._told[index] for index in stratum[:asked])
        if total >= self.quota.tokens:
            return []
        if not total:
            return stratum[asked : asked + max(_FIRST_BLOCK_ROWS, asked)]
        missing = math.ceil((self.quota.tokens - total) / (total / asked))
        return stratum[asked : asked + missing]

    def _within(self, stratum: list[int]) -> int:
        assert self.quota.tokens is not None
        return quotas.within_tokens((max(self._told[index], 0) for index in stratum), self.quota.tokens)
