"""What an answer is, and what is wrong with it: findings are flags, dropping is policy.

Flags: truncated, refused, empty, repetition, reasoning, tool_calls, special_tokens, usage, provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftmill.generate.dialogue import Message
from draftmill.generate.request import Answer
from draftmill.generate.settings import Engine

if TYPE_CHECKING:
    from draftmill.target import Renderer, Target


class Judge:
    """Turns answers into messages with flags, for one target and engine."""

    def __init__(self, target: Target, renderer: Renderer, engine: Engine) -> None:
        self._target, self._renderer, self._engine = target, renderer, engine

    def __call__(self, answer: Answer, tools: list[Any] | None) -> tuple[Message, tuple[str, ...]]:
        """The assistant turn and its flags, in the order of the list above."""
        if answer.output_ids is not None:
            message = dict(self._renderer.parse(answer.output_ids))
        else:
            message = dict(answer.message or {"role": "assistant", "content": answer.text or ""})
        findings = {
            "truncated": answer.finish == "length",
            "refused": answer.finish == "refused",
            "empty": is_empty(message),
        }
        return message, tuple(flag for flag, found in findings.items() if found)


def is_empty(message: Message) -> bool:
    """No content, no reasoning and no call."""
    said = (message.get("content") or "") + (message.get("reasoning") or "")
    return not said.strip() and not message.get("tool_calls")
