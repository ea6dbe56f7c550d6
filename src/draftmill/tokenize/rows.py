"""From an answered conversation to training rows: token ids, and the spans of the assistant's turns in them.

Ids that a server reported are used as they are; only where there are none is the conversation rendered and
encoded. Encoding is one batch for a whole chunk of rows, so that the tokenizer's speed is the stage's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from draftmill.target import Renderer, RenderError
from draftmill.target.encoding import Piece
from draftmill.target.spans import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSpan:
    """An assistant turn in a row, in tokens: [start, end) with its end-of-turn token."""

    turn: int  # index of the message
    start: int
    end: int
    origin: str  # generated, or dataset
    flag: float | None = None  # the turn's weight in the data

    def moved(self, by: int) -> TokenSpan:
        """The span in a row that begins `by` tokens later."""
        return replace(self, start=self.start - by, end=self.end - by)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRow:
    """A training row before its mask."""

    input_ids: list[int]
    spans: list[TokenSpan]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A row of answers.parquet."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[Any] | None
    group: str
    dedup: str | None
    origins: dict[int, str]  # by assistant turn
    served: list[tuple[int, list[int], list[int]]] | None  # turn, prompt ids, output ids; None without ids

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Answered:
        """From a row's columns."""
        turns = _parsed(row["turns"])
        origins = {turn["position"]: turn["origin"] for turn in turns}
        generated = [turn["position"] for turn in turns if turn["origin"] == "generated"]
        prompts, outputs = row.get("prompt_ids") or [], row.get("output_ids") or []
        served = None
        if generated and len(prompts) == len(outputs) == len(generated) and None not in [*prompts, *outputs]:
            served = list(zip(generated, prompts, outputs, strict=True))
        return cls(
            id=row["id"],
            messages=_parsed(row["conversation"]),
            tools=_parsed(row["tools"]) if row["tools"] else None,
            group=row["group"],
            dedup=row["dedup"],
            origins=origins,
            served=served,
        )

    @property
    def last_turn(self) -> int:
        """Index of the last assistant message; -1 if there is none."""
        return max((i for i, message in enumerate(self.messages) if message["role"] == "assistant"), default=-1)

    def span(self, turn: int, start: int, end: int) -> TokenSpan:
        """A span of this conversation with its origin and flag."""
        flag = self.messages[turn].get("flag")
        origin = self.origins.get(turn, "dataset")
        return TokenSpan(turn=turn, start=start, end=end, origin=origin, flag=None if flag is None else float(flag))


@dataclass(slots=True)
class Tokenized:
    """What became of one conversation: its rows, the whole conversation first, or the reason why there are none."""

    answered: Answered
    rows: list[TokenRow] = field(default_factory=list)
    reason: str = ""
    detail: str = ""
    texts: list[str] = field(default_factory=list)  # of each row, where it was rendered
    counts: Counter[str] = field(default_factory=Counter)


class Tokenizer:
    """Turns chunks of answered conversations into rows for one target."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer

    def chunk(self, answered: Sequence[Answered]) -> list[Tokenized]:
        """One result for each conversation, in order."""
        results = [Tokenized(row) for row in answered]
        layouts: list[tuple[Tokenized, Layout]] = []
        for result in results:
            try:
                layouts += [(result, layout) for layout in self._layouts(result)]
            except RenderError as error:
                result.reason, result.detail = "template", error.message
        pieces = [layout.pieces(self.renderer.target.special_tokens_in_content) for _, layout in layouts]
        encoded = iter(self.renderer.encoder.encode([piece for row in pieces for piece in row]))
        for (result, layout), row in zip(layouts, pieces, strict=True):
            if not result.reason:
                self._add(result, layout, row, [next(encoded) for _ in row])
            else:
                for _ in row:
                    next(encoded)
        return results

    def _layouts(self, result: Tokenized) -> list[Layout]:
        """The texts to encode for a conversation: its rows, or a served prompt with recorded turns in it."""
        row = result.answered
        if row.served is None:
            return self.renderer.rows(row.messages, row.tools)
        result.rows = served_rows(row)
        first = row.served[0][0]
        recorded = any(message["role"] == "assistant" for message in row.messages[:first])
        return [self.renderer.finder.layout(row.messages[:first], row.tools, True)] if recorded else []

    def _add(self, result: Tokenized, layout: Layout, pieces: Sequence[Piece], encoded: list[list[int]]) -> None:
        row = _assemble(result.answered, layout, pieces, encoded)
        if result.answered.served is None:
            result.rows.append(row)
            result.texts.append(layout.text)
            if not self._reads_back(layout, pieces, encoded):
                result.reason, result.detail = "round_trip", "the tokens do not decode to the rendered text"
        else:
            _add_recorded(result, row)

    def _reads_back(self, layout: Layout, pieces: Sequence[Piece], encoded: list[list[int]]) -> bool:
        """Whether the ids decode to the text; each piece by itself where the tokenizer normalizes text."""
        encoder = self.renderer.encoder
        table = encoder.token_bytes
        if table is None:
            ids = [i for piece in encoded for i in piece]
            return encoder.decode(ids).lstrip() in (layout.text.lstrip(), encoder.normalize(layout.text).lstrip())
        read = [b"".join([table[i] for i in ids]) for ids in encoded]
        if b"".join(read) == layout.text.encode():
            return True
        texts = [encoder.normalize(piece.text).encode() for piece in pieces]
        return texts == read


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)  # knows lone surrogates, which rendering then rejects with a reason


def served_rows(row: Answered) -> list[TokenRow]:
    """Rows from the ids that a server reported: one as long as each prompt goes on from the last prompt and answer.

    The row that holds the last turn comes first.
    """
    rows: list[TokenRow] = []
    for turn, prompt, output in row.served or []:
        span = row.span(turn, len(prompt), len(prompt) + len(output))
        last = rows[-1] if rows else None
        if last is not None and prompt[: len(last.input_ids)] == last.input_ids:
            rows[-1] = TokenRow(input_ids=prompt + output, spans=[*last.spans, span])
        else:
            rows.append(TokenRow(input_ids=prompt + output, spans=[span]))
    return [*rows[-1:], *rows[:-1]]


def _assemble(row: Answered, layout: Layout, pieces: Sequence[Piece], encoded: list[list[int]]) -> TokenRow:
    """The pieces' ids joined, and the layout's spans in tokens."""
    borders, ids, characters = {0: 0}, [], 0
    for piece, piece_ids in zip(pieces, encoded, strict=True):
        ids += piece_ids
        characters += len(piece.text)
        borders[characters] = len(ids)
    spans = [
        row.span(place.turn, borders[place.start], borders[place.end])
        for place in layout.spans
        if place.turn in layout.turns
    ]
    return TokenRow(input_ids=ids, spans=spans)


def _add_recorded(result: Tokenized, prompt: TokenRow) -> None:
    """Give the first served row the spans of the recorded turns in its prompt, if it is that prompt."""
    rows = result.rows
    first = min(range(len(rows)), key=lambda i: rows[i].spans[0].turn)
    if rows[first].input_ids[: len(prompt.input_ids)] == prompt.input_ids:
        rows[first] = replace(rows[first], spans=[*prompt.spans, *rows[first].spans])
    else:
        result.counts["recorded_turns_not_found"] += len(prompt.spans)
