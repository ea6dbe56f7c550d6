"""What a run costs and how far it is: budgets, and a progress line that tells the truth."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from draftmill.console import Progress
from draftmill.generate.estimate import mean_length
from draftmill.generate.request import Answer, Request
from draftmill.generate.settings import GenerateRun

# The estimate sorts what it is given; a sample of this size moves it by a percent or so.
_SAMPLE = 4096
_NOTE_SECONDS = 2.0


class Meter:
    """Counts tokens, cost and time of what is asked; memory does not grow with the run.

    Attributes:
        cost: US dollars so far, in this run.
        output_tokens: of the answers asked for, in this run.
    """

    def __init__(self, run: GenerateRun, shown: Progress | None = None, engine_line: Callable[[], str] = str) -> None:
        self._run, self._shown, self._engine_line = run, shown, engine_line
        self._started = self._noted = time.monotonic()
        self.cost = 0.0
        self.output_tokens = self.answers = 0
        self.errors: Counter[str] = Counter()
        self._lengths: list[float] = []
        self._busy_seconds = 0.0
        self._running: dict[str, float] = {}
        self._longest_limit = 1
        self._random = random.Random(0)

    def asked(self, request: Request) -> None:
        """A question was sent."""
        self._running[request.key] = time.monotonic()
        self._longest_limit = max(self._longest_limit, request.limit)

    def ended(self, request: Request, answer: Answer | None) -> None:
        """It was answered, or failed for good."""
        since = self._running.pop(request.key)
        if answer is None:
            return
        self.answers += 1
        self.output_tokens += answer.tokens
        self.cost += float(answer.usage.get("cost", 0.0))
        self._busy_seconds += time.monotonic() - since
        if len(self._lengths) < _SAMPLE:
            self._lengths.append(answer.tokens)
        else:  # reservoir sampling: each answer so far is in it with the same chance
            place = self._random.randrange(self.answers)
            if place < _SAMPLE:
                self._lengths[place] = answer.tokens

    def exhausted(self) -> str | None:
        """Which budget is used up, in words; None if none is."""
        run, hours = self._run, (time.monotonic() - self._started) / 3600
        if run.max_cost_usd is not None and self.cost >= run.max_cost_usd:
            return f"the budget max_cost_usd: {run.max_cost_usd:g} is used up ({self.cost:.4f})"
        if run.max_output_tokens is not None and self.output_tokens >= run.max_output_tokens:
            return f"the budget max_output_tokens: {run.max_output_tokens} is used up ({self.output_tokens})"
        if run.max_hours is not None and hours >= run.max_hours:
            return f"the budget max_hours: {run.max_hours:g} is used up"
        return None

    def row_done(self) -> None:
        """A row is finished: one step of the progress display."""
        if self._shown is None:
            return
        if time.monotonic() - self._noted < _NOTE_SECONDS:
            self._shown.advance()
            return
        self._noted = time.monotonic()
        done, total = self._shown.done + 1, self._shown.total
        self._shown.advance(note=self.note(done / total if total else None))

    def mean(self) -> tuple[float, float]:
        """(mean of the finished answers, estimate that counts those in flight), in tokens."""
        naive = self.output_tokens / self.answers if self.answers else 0.0
        if not self.answers or not self._busy_seconds:
            return naive, naive
        # Nothing tells how far an answer in flight is; the mean speed of the finished ones stands in for it.
        speed, now = self.output_tokens / self._busy_seconds, time.monotonic()
        running = [(now - since) * speed for since in self._running.values()]
        # Finished lengths may be a sample; the running ones must stand for the same share of the whole.
        share = len(self._lengths) / self.answers
        if share < 1:
            running = self._random.sample(running, round(len(running) * share))
        return naive, mean_length(self._lengths, running, self._longest_limit)

    def note(self, share_done: float | None) -> str:
        """Tokens a second, mean lengths, cost so far and projected, and what the engine says."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        naive, estimate = self.mean()
        parts = [f"{self.output_tokens / seconds:.0f} tokens/s"]
        if self.answers:
            parts.append(f"answers {estimate:.0f} tokens (finished ones {naive:.0f})")
        if self.cost:
            ahead = ""
            if share_done and naive:
                # What is still to come costs as the estimate says, not as the short ones that are back.
                left = self.cost / share_done * (1 - share_done) * estimate / naive
                ahead = f" of about {self.cost + left:.2f}"
            parts.append(f"{self.cost:.2f}{ahead} USD")
        parts += [f"{kind} {count}" for kind, count in sorted(self.errors.items())]
        parts += [line] if (line := self._engine_line()) else []
        return ", ".join(parts)
