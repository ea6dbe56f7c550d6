"""A recorded conversation as the target is led through it: what it is shown, and what it says.

    dialogue = Dialogue(messages, tools, keep)
    while dialogue.open:
        dialogue.take(the target's answer to dialogue.said)

With `keep: each_user` the target answers every user turn with its own earlier answers as history; a
recorded tool result is replayed only if the target made the same call. Any other rule asks once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

Message = dict[str, Any]
Keep = str | Mapping[str, int]


def cut(messages: list[Message], keep: Keep) -> list[Message]:
    """The part of a conversation that is shown to the target, which then answers once; [] without a user turn.

    extract has applied the same rule already, so this only drops recorded answers that came after it.
    """
    users = [i for i, message in enumerate(messages) if message["role"] == "user" and has_text(message)]
    if not users:
        return []
    if keep == "first_user":
        return [m for m in messages[: users[0]] if m["role"] == "system"] + [messages[users[0]]]
    if keep == "to_last_user":
        return messages[: users[-1] + 1]
    if isinstance(keep, Mapping) and "users" in keep:
        return messages[: users[: keep["users"]][-1] + 1]
    inputs = [i for i, message in enumerate(messages) if message["role"] != "assistant"]
    return messages[: inputs[-1] + 1]


def has_text(message: Message) -> bool:
    """Whether the content is more than whitespace."""
    return bool((message.get("content") or "").strip())


def calls(message: Message) -> list[tuple[str, Any]]:
    """The tool calls of a turn as (name, arguments), in order."""
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]


class Dialogue:
    """The state of one row.

    Attributes:
        said: the conversation so far: recorded turns, with the target's answers in their places.
        generated: positions in `said` of the target's answers.
        open: whether the target is to speak next.
        ended: why a conversation with several answers ended early, such as `diverged`; None if it did not.
    """

    def __init__(self, messages: list[Message], tools: list[Any] | None, keep: Keep) -> None:
        self.tools, self.generated = tools, list[int]()
        self.ended: str | None = None
        self._rest: list[Message] = []
        if keep == "each_user":
            start = next((i + 1 for i, m in enumerate(messages) if m["role"] == "user" and has_text(m)), 0)
            self.said, self._rest = messages[:start], messages[start:]
        else:
            self.said = list(cut(messages, keep))
        self.open = bool(self.said)

    def take(self, message: Message) -> None:
        """Add the target's answer, and what the recording says to it, if anything."""
        self.generated.append(len(self.said))
        self.said.append(message)
        self.open = self._replay(message) if calls(message) else self._next_user()

    def end(self, reason: str) -> None:
        """Stop here; a turn that the target has not answered is taken back, unless it has answered none."""
        self.open, self._rest = False, []
        if self.generated:
            self.ended = reason
            del self.said[self.generated[-1] + 1 :]

    def _next_user(self) -> bool:
        users = [i for i, m in enumerate(self._rest) if m["role"] == "user" and has_text(m)]
        if not users:
            return False
        self.said.append(self._rest[users[0]])
        self._rest = self._rest[users[0] + 1 :]
        return True

    def _replay(self, message: Message) -> bool:
        """Append the recorded results if the recording made the same calls here; else the conversation ends."""
        recorded = self._rest[0] if self._rest else None
        results = list(takewhile(lambda m: m["role"] == "tool", self._rest[1:]))
        if recorded is None or recorded["role"] != "assistant" or not results or calls(recorded) != calls(message):
            if self._rest:
                self.ended = "diverged"
            return False
        renamed = dict(zip(_call_ids(recorded), _call_ids(message), strict=True))
        self.said += [_renamed(result, renamed) for result in results]
        self._rest = self._rest[1 + len(results) :]
        return True


def _call_ids(message: Message) -> list[str | None]:
    return [call.get("id") for call in message["tool_calls"]]


def _renamed(result: Message, ids: dict[str | None, str | None]) -> Message:
    call_id = ids.get(result.get("tool_call_id"), result.get("tool_call_id"))
    return {**result, "tool_call_id": call_id} if call_id is not None else result
