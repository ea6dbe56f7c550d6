"""What an answer is, and what is wrong with it: findings are flags, dropping is policy (`Policy`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from draftmill.generate.dialogue import Message
from draftmill.generate.request import Answer
from draftmill.generate.settings import Engine
from draftmill.generate.tool_schemas import faults

if TYPE_CHECKING:
    from draftmill.target import Renderer, Target

# How the known families open a tool call in text; found in the content after parsing, the call did not parse.
_CALL_MARKS = ("<tool_call>", "</tool_call>", "<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<|python_tag|>")
# A stretch that comes back at least so often in a row, over at least so many characters, is degenerate.
_REPEATS, _REPEATED_CHARACTERS = 8, 160
_LONGEST_PERIOD = 200
_MARKUP = re.compile(r"<[|/]?[^\s<>]{1,40}>|\[/?[A-Z_]{2,20}\]")


class Judge:
    """Turns answers into messages with flags, for one target and engine.

    Flags, in this order: truncated, refused, empty, repetition, reasoning, tool_calls, special_tokens, usage,
    provider, retokenized (ids are to be rebuilt from text; never dropped).
    """

    def __init__(self, target: Target, renderer: Renderer, engine: Engine) -> None:
        self._renderer, self._engine, self._tags = renderer, engine, target.reasoning
        known = [target.reasoning.open, target.reasoning.close] if target.reasoning else []
        self._special = frozenset(renderer.card.special_tokens) - set(known) - set(_CALL_MARKS)

    def __call__(self, answer: Answer, tools: list[Any] | None) -> tuple[Message, tuple[str, ...]]:
        """The assistant turn and its flags."""
        message = self.message(answer)
        cut = answer.finish == "length"
        text = message.get("content") or ""
        findings: dict[str, Callable[[], bool]] = {
            "truncated": lambda: cut,
            "refused": lambda: answer.finish == "refused",
            "empty": lambda: is_empty(message),
            "repetition": lambda: repeats(text) or repeats(message.get("reasoning") or ""),
            "reasoning": lambda: self._unbalanced(message, cut),
            "tool_calls": lambda: self._bad_calls(message, tools, cut),
            "special_tokens": lambda: self._has_special(text),
            "usage": lambda: self._miscounted(answer),
            "provider": lambda: not self._pinned(answer.engine),
            "retokenized": lambda: answer.output_ids is None,
        }
        return message, tuple(flag for flag, found in findings.items() if found())

    def message(self, answer: Answer) -> Message:
        """The assistant turn: parsed from exact ids, or as a chat endpoint gave it."""
        if answer.output_ids is not None:
            return dict(self._renderer.parse(answer.output_ids))
        given = dict(answer.message or {"role": "assistant", "content": answer.text or ""})
        if "reasoning" in given or "tool_calls" in given:
            return given
        # A server without parsers leaves tags and calls in the text.
        return dict(self._renderer.parse(given["content"]))

    def _unbalanced(self, message: Message, cut: bool) -> bool:
        """A tag left in the content; an answer that was cut while it reasoned is only truncated."""
        if self._tags is None:
            return False
        text = message.get("content") or ""
        return self._tags.close in text or (self._tags.open in text and not cut)

    def _bad_calls(self, message: Message, tools: list[Any] | None, cut: bool) -> bool:
        text = message.get("content") or ""
        if any(mark in text for mark in _CALL_MARKS):
            return not cut
        return any(faults(call, tools) for call in message.get("tool_calls") or ())

    def _has_special(self, text: str) -> bool:
        return any(match in self._special for match in _MARKUP.findall(text))

    def _miscounted(self, answer: Answer) -> bool:
        """Exact ids must be as many as were counted; rebuilt ones may differ a little (special tokens, template)."""
        counted = answer.usage.get("completion_tokens")
        if counted is None:
            return False
        if answer.output_ids is not None:
            # Some servers do not count the token that ended the turn.
            ended = bool(answer.output_ids) and answer.output_ids[-1] in self._renderer.eos_ids
            return counted not in (len(answer.output_ids), len(answer.output_ids) - ended)
        message = answer.message or {}
        if message.get("tool_calls"):
            return False  # how calls were written is not known
        rebuilt = len(self._renderer.encode((message.get("reasoning") or "") + (message.get("content") or "")))
        return abs(counted - rebuilt) > 8 + 0.05 * counted

    def _pinned(self, engine: str) -> bool:
        served = engine.partition(":")[2]
        wanted = [_plain(name.partition("/")[0]) for name in self._engine.identity.provider]
        return not served or not wanted or _plain(served) in wanted


def is_empty(message: Message) -> bool:
    """No content, no reasoning and no call."""
    said = (message.get("content") or "") + (message.get("reasoning") or "")
    return not said.strip() and not message.get("tool_calls")


def repeats(text: str) -> bool:
    """Whether the end of a text is one stretch of at most 200 characters over and over (a model in a loop).

    Linear in the length of the tail that is looked at, whatever the text.
    """
    tail = text.rstrip()[-max(_LONGEST_PERIOD * _REPEATS, _REPEATED_CHARACTERS) :]
    if len(tail) < _REPEATED_CHARACTERS:
        return False
    backwards = tail[::-1]
    return any(
        length >= _REPEATED_CHARACTERS and length >= _REPEATS * period
        for period, length in enumerate(_periodic_prefixes(backwards), start=1)
    )


def _periodic_prefixes(text: str) -> list[int]:
    """For each period p from 1 to 200: how long a prefix of `text` has period p (the Z function, shifted)."""
    z, left, right = [0] * len(text), 0, 0
    for i in range(1, len(text)):
        if i < right:
            z[i] = min(right - i, z[i - left])
        while i + z[i] < len(text) and text[z[i]] == text[i + z[i]]:
            z[i] += 1
        if i + z[i] > right:
            left, right = i, i + z[i]
    return [z[period] + period for period in range(1, min(_LONGEST_PERIOD + 1, len(text)))]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
