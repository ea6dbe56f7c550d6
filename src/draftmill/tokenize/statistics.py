"""Figures of a tokenized dataset for metrics.json: the same for equal inputs, whatever the machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from draftmill.target import Renderer
from draftmill.target.encoding import Piece
from draftmill.tokenize.rows import Answered, Tokenized, TokenRow

ROLE_TOKENS = 10_000  # counted by role: the first conversations, until they have so many


class Statistics:
    """Sums over the conversations that came through."""

    def __init__(self, shown: Renderer) -> None:
        self._renderer = shown
        self.conversations = self.rows = self.tokens = self.trainable = self.turns = self.empty = 0
        self._responses = 0
        self._lengths: list[int] = []
        self._counts: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()

    def add(self, result: Tokenized, rows: Sequence[TokenRow], trainable: int) -> None:
        """Count one conversation and its rows; `trainable` tokens in all of them."""
        lengths = [len(row.input_ids) for row in rows]
        spans = [span for row in rows for span in row.spans]
        if self._roles.total() < ROLE_TOKENS:
            self._roles += tokens_by_role(self._renderer, result.answered, sum(lengths))
        self.conversations += 1
        self.rows += len(rows)
        self.tokens += sum(lengths)
        self.trainable += trainable
        self.turns += len(spans)
        self.empty += not trainable
        self._responses += sum(span.end - span.start for span in spans)
        self._lengths += lengths
        served = result.answered.served is not None
        generated = sum(span.origin == "generated" for span in spans)
        self._counts["turns_served_as_ids" if served else "turns_retokenized"] += generated
        self._counts["turns_from_dataset"] += len(spans) - generated
        self._counts["fan_out_rows"] += len(result.rows) - 1
        self._counts["split_by_length"] += rows != result.rows
        wanted = sum(message["role"] == "assistant" for message in result.answered.messages)
        self._counts["turns_left_out"] += max(0, wanted - len(spans))
        self._counts.update(result.counts)

    def figures(self) -> dict[str, object]:
        """For metrics.json. Lengths are in tokens; `empty_mask` counts conversations with nothing to train."""
        lengths = sorted(self._lengths)
        at = {q: lengths[min(len(lengths) - 1, int(q * len(lengths)))] if lengths else 0 for q in (0.5, 0.9)}
        return {
            "rows_written": self.rows,
            "tokens": self.tokens,
            "prompt_tokens": self.tokens - self._responses,
            "response_tokens": self._responses,
            "trainable_tokens": self.trainable,
            "trainable_share": round(self.trainable / self.tokens, 4) if self.tokens else 0.0,
            "turns": self.turns,
            "empty_mask": self.empty,
            "length": {"median": at[0.5], "p90": at[0.9], "max": lengths[-1] if lengths else 0},
            "tokens_by_role": dict(sorted(self._roles.items())),
            **{name: count for name, count in sorted(self._counts.items()) if count},
        }

    def line(self) -> str:
        """One line for people."""
        share = self.trainable / self.tokens if self.tokens else 0.0
        return (
            f"{self.conversations} conversations, {self.rows} rows, {self.tokens} tokens, "
            f"{self.trainable} trainable ({share:.0%}), {self.empty} without any"
        )


def tokens_by_role(shown: Renderer, row: Answered, tokens: int) -> Counter[str]:
    """Tokens of each role's texts, encoded by themselves; what is left of `tokens` is the template's, tools too."""
    texts = [(m["role"], m[key]) for m in row.messages for key in ("reasoning", "content") if m.get(key)]
    texts += [(m["role"], json.dumps(m["tool_calls"], ensure_ascii=False)) for m in row.messages if m.get("tool_calls")]
    encoded = shown.encoder.encode([Piece(text) for _, text in texts])
    counts: Counter[str] = Counter()
    for (role, _), ids in zip(texts, encoded, strict=True):
        counts[role] += len(ids)
    counts["template"] = max(0, tokens - counts.total())
    return counts
