"""Asking: everything that several jobs want from one target, through one session."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from draftmill.console import progress
from draftmill.errors import BuildError
from draftmill.generate.checks import Judge
from draftmill.generate.engines import open_engine
from draftmill.generate.job import Job, Settings
from draftmill.generate.meter import Meter
from draftmill.generate.request import Prompter
from draftmill.generate.session import Row, Session, run
from draftmill.generate.store import Store

if TYPE_CHECKING:
    from draftmill.target import Renderer

# Rows looked at, for each one in flight, when the next is chosen.
LOOK_AHEAD = 2


class Talk:
    """All that is needed to have conversations with one target: prompts, checks, and an engine to be opened."""

    def __init__(self, settings: Settings) -> None:
        from draftmill.target import renderer

        self._settings = settings
        self.renderer: Renderer = renderer(settings.target)
        self.prompter = Prompter(settings.target, settings.engine, settings.sampling, self.renderer)
        self.judge = Judge(settings.target, self.renderer, settings.engine)

    def ask(self, jobs: Sequence[Job], store: Store) -> tuple[Session, dict[str, object]]:
        """Have every conversation that the jobs want; returns the session and the figures of the run.

        Raises BuildError if a budget ended it or too many rows failed, KeyboardInterrupt if interrupted.
        """
        chosen = self._settings
        asker = open_engine(chosen.target, self.renderer, chosen.engine, chosen.sampling, chosen.run, chosen.machine)
        name = jobs[0].dataset if len(jobs) == 1 else f"{len(jobs)} datasets"
        total = sum(len(job.candidates) for job in jobs)
        seconds = 0.0
        with progress(f"generate {name}", total if all(job.quota.tokens is None for job in jobs) else None) as shown:
            meter = Meter(chosen.run, shown, asker.line)
            session = Session(asker, store, meter)
            while not session.stopped and (blocks := [(job, block) for job in jobs if (block := job.next_block())]):
                seconds += run(session, self._longest_first(blocks, asker.concurrency * LOOK_AHEAD))
        self._require_complete(session, total)
        counts = {"asked": session.counts["asked"], "reused": session.counts["reused"]}
        spent = {"seconds": round(seconds, 3), "output_tokens": meter.output_tokens, "cost_usd": round(meter.cost, 6)}
        return session, {**counts, **spent, **asker.figures()}

    def _longest_first(self, blocks: Sequence[tuple[Job, list[int]]], window: int) -> Iterator[Row]:
        """Long questions first, so that the end of the run does not wait for a few of them.

        Datasets go by the mean size of their rows; among the next `window` rows the largest is next.
        """
        heap: list[tuple[int, int, Row]] = []
        ordered = sorted(blocks, key=lambda block: -block[0].rows.mean_bytes())
        rows = (sized for job, block in ordered for sized in job.conversations(block, self.prompter, self.judge))
        for number, (size, row) in enumerate(rows):
            heapq.heappush(heap, (-size, number, row))
            if len(heap) > window:
                yield heapq.heappop(heap)[2]
        while heap:
            yield heapq.heappop(heap)[2]

    def _require_complete(self, session: Session, total: int) -> None:
        """Stop the build rather than drop what only needs asking again."""
        if session.stopped:
            missing = f"{total - session.rows} of {total} rows are still to be asked"
            raise BuildError(f"{session.stopped}; {missing}", fix="run again: what was answered is kept")
        failed = session.counts["failed:failed"]
        if failed > self._settings.sampling.policy.max_failed * session.rows:
            errors = {str(error) for error in session.failures.values() if error.reason == "failed"}
            raise BuildError(
                f"{failed} of {session.rows} rows got no answer",
                key="sampling.policy.max_failed",
                found="; ".join(sorted(errors)[:3]),
                fix="see to the server, then run again: what was answered is kept",
            )
