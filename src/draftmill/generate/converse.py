"""One row from its first question to its last answer, without input or output.

`converse` is a generator: it yields each question, is sent the answer (or thrown a RowError), and returns
what was told. The session drives it with a server, the assembly with the store alone, so that both see
the same conversation.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from draftmill.generate.checks import Judge
from draftmill.generate.dialogue import Dialogue, Message
from draftmill.generate.request import Answer, Prompter, Request, RowError
from draftmill.generate.settings import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A finished row: the conversation with the target's answers, and each answer beside its question."""

    said: list[Message]
    turns: list[tuple[int, Request, Answer, tuple[str, ...]]] = field(default_factory=list)
    """(position in `said`, question, answer, flags) of each generated turn, in order."""
    ended: str | None = None

    @property
    def tokens(self) -> int:
        """Answer tokens of the row."""
        return sum(answer.tokens for _, _, answer, _ in self.turns)


def converse(dialogue: Dialogue, prompter: Prompter, judge: Judge, policy: Policy) -> Generator[Request, Answer, Told]:
    """Lead one row; raises RowError if it ends without a usable answer.

    A later turn that the policy drops ends the conversation before it; a later turn that got no answer at
    all rejects the row, so that the next run asks it again.
    """
    turns: list[tuple[int, Request, Answer, tuple[str, ...]]] = []
    if not dialogue.open:
        raise RowError("no_prompt", "no user turn with text")
    while dialogue.open:
        try:
            request, answer, message, flags = yield from _turn(dialogue, prompter, judge, policy)
        except Dropped as drop:
            if not turns:
                raise
            dialogue.end(drop.reason)
            break
        turns.append((len(dialogue.said), request, answer, flags))
        dialogue.take(message)
        if dialogue.open and answer.finish == "length":
            dialogue.end("truncated")
    return Told(said=dialogue.said, turns=turns, ended=dialogue.ended)


class Dropped(RowError):
    """The policy, or the context length, drops a turn; the turns before it stay."""


def _turn(
    dialogue: Dialogue, prompter: Prompter, judge: Judge, policy: Policy
) -> Generator[Request, Answer, tuple[Request, Answer, Message, tuple[str, ...]]]:
    request = prompter.request(dialogue)
    if request is None:
        raise Dropped("too_long", "the prompt leaves no room in the target's context")
    answer = yield request
    if answer.finish == "length" and policy.truncated == "retry":
        larger = prompter.request(dialogue, retry=True)
        if larger is not None and larger.limit > request.limit:
            request = larger
            answer = yield larger
    message, flags = judge(answer, dialogue.tools)
    for flag in flags:
        if getattr(policy, flag, "keep") == "drop":
            raise Dropped(flag, _words(message))
    return request, answer, message, flags


def _words(message: Message) -> str:
    content: Any = message.get("content") or message.get("reasoning") or ""
    return str(content)
