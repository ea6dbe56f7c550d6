"""Which tokens train: policies over the spans of assistant turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftmill.errors import ConfigError, did_you_mean
from draftmill.tokenize.rows import TokenRow, TokenSpan

Runs = list[tuple[int, int]]  # start and length, in tokens, in order, apart from each other

POLICIES = ("assistant", "last_assistant", "generated", "non_system", "all", "flag")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mask:
    """`mask:` of a dataset.

    assistant: every assistant turn; last_assistant: the conversation's last; generated: those that the target
    wrote in this build; flag: those whose flag or weight in the data is above 0; non_system: all but the leading
    system turns; all: every token.
    """

    policy: str = "assistant"

    @classmethod
    def read(cls, value: object, dataset: str) -> Mask:
        """From the declaration: a policy's name, or {flag: path}. Raises ConfigError."""
        file, key = f"conf/dataset/{dataset}.yaml", "mask"
        if isinstance(value, Mapping) and list(value) == ["flag"]:
            return cls(policy="flag")
        if value not in POLICIES[:-1]:
            fix = f"{did_you_mean(str(value), POLICIES[:-1])}; or {{flag: path of a turn's flag}}"
            raise ConfigError("unknown mask policy", file=file, key=key, found=repr(value), fix=fix)
        return cls(policy=str(value))

    def runs(self, row: TokenRow, last_turn: int, system_tokens: int) -> Runs:
        """The trainable tokens of a row. `system_tokens`: how many it begins with that are system turns'."""
        if self.policy in ("all", "non_system"):
            start = system_tokens if self.policy == "non_system" else 0
            return [(start, len(row.input_ids) - start)] if start < len(row.input_ids) else []
        return merged((span.start, span.end) for span in row.spans if self._wants(span, last_turn))

    def _wants(self, span: TokenSpan, last_turn: int) -> bool:
        if self.policy == "last_assistant":
            return span.turn == last_turn
        if self.policy == "generated":
            return span.origin == "generated"
        return self.policy == "assistant" or bool(span.flag and span.flag > 0)


def merged(spans: Iterable[tuple[int, int]]) -> Runs:
    """Runs (start, length) of sorted spans [start, end); touching ones become one, empty ones vanish."""
    runs: Runs = []
    for start, end in spans:
        if runs and start <= sum(runs[-1]):
            runs[-1] = (runs[-1][0], max(end, sum(runs[-1])) - runs[-1][0])
        elif start < end:
            runs.append((start, end - start))
    return runs


def common_prefix(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many elements both begin with."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
