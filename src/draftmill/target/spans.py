"""Where the assistant's turns stand in a rendered conversation, to the character.

A turn's span is what the target generates: from the end of the generation prompt to its end-of-turn text, that
text included. Three ways find it: generation blocks of the template; marks in the turn's fields, with the text
before the first field learned once for each form of turn; and the render boundary (the prompt of the turn against
the conversation up to it), slow, for templates that do neither or that rewrite earlier turns.

    one render ──> spans ──> a few prompts compared with the text ──yes──> one row
                                      └──no──> every turn by render boundary ──> one row per rewritten turn
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import orjson

from draftmill.errors import BuildError
from draftmill.target.encoding import Piece
from draftmill.target.marks import Marked, Marker, Place
from draftmill.target.template import Message, RenderError

# Conversations of one form: the first few are all compared with their prompts, later ones now and then.
_SURE_AFTER, _CHECK_EVERY = 4, 16

Way = Literal["generation", "marks", "boundary"]
# render(messages, tools, generation_prompt, marks of generation blocks)
Render = Callable[[Sequence[Message], "Sequence[Any] | None", bool, "tuple[str, str] | None"], str]


@dataclass(frozen=True, slots=True)
class Layout:
    """A rendered conversation: text, the assistant spans in order, and which turns this row is for."""

    text: str
    spans: tuple[Place, ...]  # turn is the message's index
    literals: tuple[Place, ...]  # special-token texts that the conversation holds
    turns: frozenset[int]  # the turns to train in this row; the other spans are history

    def pieces(self, special_in_content: bool) -> list[Piece]:
        """The text cut at the spans' borders, and around special-token texts unless they may stay special."""
        plain = () if special_in_content else self.literals
        cuts = {0, len(self.text)}
        for _, start, end in (*self.spans, *plain):
            cuts |= {start, end}
        borders, starts = sorted(cuts), {place.start for place in plain}
        pairs = pairwise(borders)
        return [Piece(self.text[start:end], start == 0, start in starts) for start, end in pairs]


class _Form(NamedTuple):
    """What surrounds the fields of one form of turn, as the target is served it."""

    prompt: str  # the generation prompt's text
    lead: str  # from the span's start to the first field
    end: str  # the end-of-turn text


class _NotFound(Exception):
    """This way cannot tell the spans."""


class SpanFinder:
    """Finds spans for one template. `ends` are end-of-turn texts, `specials` texts that encode to a special id."""

    def __init__(self, render: Render, way: Way, ends: Sequence[str], specials: Sequence[str]) -> None:
        self.render, self.way = render, way
        self.ends = tuple(sorted(ends, key=len, reverse=True))
        texts = sorted({*specials, *ends}, key=len, reverse=True)
        self.specials = re.compile("|".join(re.escape(text) for text in texts) or r"(?!)")
        self.specials_in_json = re.compile(b"|".join(re.escape(orjson.dumps(t)[1:-1]) for t in texts) or rb"(?!)")
        self._end = re.compile("|".join(re.escape(text) for text in self.ends) or r"(?!)")
        self._forms: dict[object, _Form | None] = {}
        self._kept: dict[object, int] = {}  # conversations by form that kept their history

    def layout(self, messages: Sequence[Message], tools: Sequence[Any] | None, generation_prompt: bool) -> Layout:
        """One text with the spans that stand in it as the target writes them. Raises RenderError."""
        chat = _Chat(self, messages, tools)
        try:
            marked, spans = self._find(chat, generation_prompt)
        except _NotFound:
            marked = chat.marked(len(messages), generation_prompt)
            spans = [place for place, text in chat.served() if _holds(marked.text, place, text)]
        return Layout(marked.text, tuple(spans), marked.literals, frozenset(place.turn for place in spans))

    def rows(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Layout]:
        """The training rows of a conversation: the whole of it first, then one for each group of turns that the
        template rewrites when later turns come. No turn is in `turns` of two rows. Raises RenderError.
        """
        chat = _Chat(self, messages, tools)
        form = chat.form()
        known = self._kept.get(form, 0)
        sure = known >= _SURE_AFTER and known % _CHECK_EVERY != 0
        try:
            marked, spans = self._find(chat, False)
        except _NotFound:
            return self._fan_out(chat)
        if sure or self._keeps_history(chat, marked.text, spans):
            self._kept[form] = known + 1
            return [Layout(marked.text, tuple(spans), marked.literals, frozenset(p.turn for p in spans))]
        if known >= _SURE_AFTER:
            fix = "set  spans: boundary  in the target's file: every turn is rendered by itself then"
            raise BuildError("the chat template rewrites the history of some conversations only", fix=fix)
        self._kept[form] = -sys.maxsize
        return self._fan_out(chat)

    def _fan_out(self, chat: _Chat) -> list[Layout]:
        """Rows that cover every turn once, each in the text in which the target writes it, from the last turn on."""
        served = list(chat.served())
        left = {place.turn for place, _ in served}
        rows, count = [], len(chat.messages)
        while True:
            marked = chat.marked(count, False)
            spans = [place for place, text in served if place.turn < count and _holds(marked.text, place, text)]
            new = frozenset(place.turn for place in spans) & left
            if new or count == len(chat.messages):
                rows.append(Layout(marked.text, tuple(spans), marked.literals, new))
            left -= new
            if count - 1 in left:  # its own last turn is not as served: nothing can hold it
                left.discard(count - 1)
            if not left:
                break
            count = max(left) + 1
        whole, *others = rows
        if not whole.turns and others:
            whole, *others = others[0], *others[1:]
        return [whole, *reversed(others)]

    def _find(self, chat: _Chat, generation_prompt: bool) -> tuple[Marked, list[Place]]:
        if self.way == "generation":
            return self._by_generation_blocks(chat, generation_prompt)
        if self.way == "marks":
            return self._by_marks(chat, generation_prompt)
        raise _NotFound

    def _by_generation_blocks(self, chat: _Chat, generation_prompt: bool) -> tuple[Marked, list[Place]]:
        marked = chat.marked(len(chat.messages), generation_prompt)
        if len(marked.generations) != len(chat.turns):
            raise _NotFound
        spans = []
        for turn, block in zip(chat.turns, marked.generations, strict=True):
            end = self.last_end(marked, block.start, block.end)
            following = self._end.match(marked.text, block.end) if end is None else None
            spans.append(Place(turn, block.start, end or (following.end() if following else block.end)))
        return marked, spans

    def _by_marks(self, chat: _Chat, generation_prompt: bool) -> tuple[Marked, list[Place]]:
        marked = chat.marked(len(chat.messages), generation_prompt, fields=True)
        # A template may look into a text and act otherwise for the marks in it: the plain render is what counts.
        if not marked.whole or marked.text != chat.marked(len(chat.messages), generation_prompt).text:
            raise _NotFound
        fields = _by_turn(marked.fields)
        spans, position = [], 0
        for turn in chat.turns:
            form = self._form(chat, turn)
            span = form and self._span_of(marked, form, turn, fields.get(turn, []), chat.field_count(turn))
            if not span or span.start < position:
                raise _NotFound
            spans.append(span)
            position = span.end
        return marked, spans

    def _span_of(self, marked: Marked, form: _Form, turn: int, fields: list[Place], count: int) -> Place | None:
        if not fields or len(fields) != count:
            return None
        start = fields[0].start - len(form.lead)
        end = self.next_end(marked, fields[-1].end)
        as_served = (
            start >= 0
            and marked.text.startswith(form.lead, start)
            and marked.text.endswith(form.prompt, 0, start)
            and end is not None
            and marked.text.endswith(form.end, 0, end)
        )
        return Place(turn, start, end) if as_served and end is not None else None

    def _form(self, chat: _Chat, turn: int) -> _Form | None:
        key = chat.form_key(turn)
        if key not in self._forms:
            self._forms[key] = self._learn(chat, turn)
        return self._forms[key]

    def _learn(self, chat: _Chat, turn: int) -> _Form | None:
        """The form of `turn` by its render boundary; None where marks would not find that same span."""
        served = chat.serve(turn)
        if served is None:
            return None
        span, text = served
        marked = chat.marked(turn + 1, False, fields=True)
        fields = _by_turn(marked.fields).get(turn, [])
        if not marked.whole or not _holds(marked.text, span, text) or not fields:
            return None
        ending = next((end for end in self.ends if text.endswith(end)), "")
        form = _Form(chat.generation_prompt(turn), marked.text[span.start : fields[0].start], ending)
        return form if self._span_of(marked, form, turn, fields, chat.field_count(turn)) == span else None

    def _keeps_history(self, chat: _Chat, text: str, spans: Sequence[Place]) -> bool:
        """Whether the turns stand in `text` as they were served: the first turn of each form, and the last, the
        middle, the quarter, … one are compared, so that the cost stays linear in the conversation's length.
        """
        chosen = {}
        for place in reversed(spans):
            chosen[chat.form_key(place.turn)] = place
        checked, index = set(chosen.values()), len(spans)
        while index:
            checked.add(spans[index - 1])
            index //= 2
        for place in checked:
            served = chat.serve(place.turn)
            if served is None or served[0] != place or not _holds(text, *served):
                return False
        return True

    def last_end(self, marked: Marked, start: int, limit: int) -> int | None:
        """Where the last end-of-turn text of the template in [start, limit) ends."""
        ends = [match.end() for match in self._ends_of(marked, start, limit)]
        return ends[-1] if ends else None

    def next_end(self, marked: Marked, start: int) -> int | None:
        """Where the first end-of-turn text of the template after `start` ends."""
        return next((match.end() for match in self._ends_of(marked, start, len(marked.text))), None)

    def _ends_of(self, marked: Marked, start: int, limit: int) -> Iterator[re.Match[str]]:
        literal = {place.start for place in marked.literals}
        return (match for match in self._end.finditer(marked.text, start, limit) if match.start() not in literal)


class _Chat:
    """One conversation under one template: its renders, each made once."""

    def __init__(self, finder: SpanFinder, messages: Sequence[Message], tools: Sequence[Any] | None) -> None:
        self._finder = finder
        try:
            raw = orjson.dumps([messages, tools])
        except TypeError as error:
            raise RenderError(f"the conversation is not valid Unicode text: {error}") from None
        self._marker = Marker(raw)
        self.messages, self.tools = messages, tools
        if finder.specials_in_json.search(raw):
            self._check_literals(finder)
        self.turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        self._renders: dict[tuple[int, bool, bool], Marked] = {}
        self._served: dict[int, tuple[Place, str] | None] = {}

    def _check_literals(self, finder: SpanFinder) -> None:
        unmarked = finder.render(self.messages, self.tools, False, None)
        self.messages = self._marker.literals(self.messages, finder.specials)
        self.tools = self._marker.literals(self.tools, finder.specials)
        marked = self._marker.read(finder.render(self.messages, self.tools, False, None))
        if not marked.whole or marked.text != unmarked:
            raise RenderError("special tokens in the content cannot be told from the template's own")

    def marked(self, count: int, generation_prompt: bool, fields: bool = False) -> Marked:
        """The first `count` messages rendered, with marks in the assistant's fields if asked for."""
        key = (count, generation_prompt, fields)
        if key not in self._renders:
            messages = self.messages[:count]
            if fields:
                messages = [self._mark(i, m) if m["role"] == "assistant" else m for i, m in enumerate(messages)]
            marks = self._marker.generation() if self._finder.way == "generation" else None
            text = self._finder.render(messages, self.tools, generation_prompt, marks)
            self._renders[key] = self._marker.read(text)
        return self._renders[key]

    def served(self) -> Iterator[tuple[Place, str]]:
        """Every turn by its render boundary, without those that the template does not write as an answer."""
        return (served for turn in self.turns if (served := self.serve(turn)) is not None)

    def serve(self, turn: int) -> tuple[Place, str] | None:
        """The turn's span and the text up to its end as the target is served it: its prompt, then its answer.

        None if the text with the answer does not go on from the prompt.
        """
        if turn not in self._served:
            self._served[turn] = self._serve(turn)
        return self._served[turn]

    def _serve(self, turn: int) -> tuple[Place, str] | None:
        try:
            prompt, answered = self.marked(turn, True).text, self.marked(turn + 1, False)
        except RenderError:
            return None
        if not answered.text.startswith(prompt):
            return None
        end = self._finder.last_end(answered, len(prompt), len(answered.text)) or len(answered.text)
        return Place(turn, len(prompt), end), answered.text[:end]

    def generation_prompt(self, turn: int) -> str:
        """The text of the generation prompt before `turn`; empty where it cannot be told from the conversation."""
        try:
            before = self.marked(turn, False).text
        except RenderError:
            return ""
        prompt = self.marked(turn, True).text
        return prompt[len(before) :] if prompt.startswith(before) else ""

    def _mark(self, turn: int, message: Message) -> Message:
        marked = dict(message)
        for name in ("reasoning", "content"):
            if message.get(name):
                marked[name] = self._marker.field(turn, message[name])
        if message.get("tool_calls"):
            marked["tool_calls"] = [self._mark_call(turn, call) for call in message["tool_calls"]]
        return marked

    def _mark_call(self, turn: int, call: Message) -> Message:
        function = call["function"]
        return {**call, "function": {**function, "name": self._marker.field(turn, function["name"])}}

    def form(self) -> object:
        """What decides whether the template keeps the history: the forms of turns before and after the last user."""
        users = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        last = users[-1] if users else -1
        before = frozenset(self.form_key(turn) for turn in self.turns if turn < last)
        after = frozenset(self.form_key(turn) for turn in self.turns if turn > last)
        return before, after, self.messages[-1]["role"] if self.messages else None

    def field_count(self, turn: int) -> int:
        """How many fields of the turn are marked."""
        message = self.messages[turn]
        texts = [message.get("reasoning"), message.get("content")]
        return sum(bool(text and text.strip()) for text in texts) + len(message.get("tool_calls") or [])

    def form_key(self, turn: int) -> tuple[object, ...]:
        """What decides the text around a turn's fields: which fields, their blanks, and what stands before."""
        message = self.messages[turn]
        texts = [message.get("reasoning") or "", message.get("content") or ""]
        blanks = [(text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :], not text) for text in texts]
        before = self.messages[turn - 1]["role"] if turn else None
        return (*blanks, bool(message.get("tool_calls")), before, bool(self.tools))


def _holds(text: str, place: Place, served: str) -> bool:
    return len(served) == place.end and text.startswith(served)


def _by_turn(fields: Sequence[Place]) -> dict[int, list[Place]]:
    turns: dict[int, list[Place]] = {}
    for place in fields:
        turns.setdefault(place.turn, []).append(place)
    return turns
