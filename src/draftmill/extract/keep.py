"""Which part of a conversation is kept: everything the target is not to write itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from draftmill.extract.outcome import Message, Rejected
from draftmill.extract.schema import Keep

Cuts = list[tuple[str, "int | list[int]"]]
"""(suffix for the row's id, how many messages are kept or their positions), one for each row that comes out."""


_QUESTION: Cuts = [("", 1)]


def cutter(keep: Keep) -> Callable[[list[Message], bytes], Cuts]:
    """A function from messages (with at least one user turn) and the row's content hash to its cuts.

    It raises Rejected if the rule finds nothing to keep.
    """
    rule, count = keep
    if rule == "steps":
        return lambda messages, content: _steps(messages, content, count)
    if rule == "first_user":
        return lambda messages, content: _QUESTION if messages[0]["role"] == "user" else [("", _first_user(messages))]
    if rule == "to_last_user":
        return lambda messages, content: [("", _last_user(messages))]
    end = _ENDS[rule]
    return lambda messages, content: [("", end(messages, count))]


def _first_user(messages: list[Message]) -> int | list[int]:
    """The system turns before it, and the first user turn."""
    first = 0
    while messages[first]["role"] != "user":
        first += 1
    systems = [i for i in range(first) if messages[i]["role"] == "system"]
    return first + 1 if len(systems) == first else [*systems, first]


def _users(messages: list[Message], count: int) -> int:
    places = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if len(places) < count:
        raise Rejected("too_few_user_turns")
    return places[count - 1] + 1


def _last_user(messages: list[Message]) -> int:
    place = len(messages)
    while messages[place - 1]["role"] != "user":
        place -= 1
    return place


def _last(messages: list[Message], roles: frozenset[str], reason: str) -> int:
    for place in range(len(messages), 0, -1):
        if messages[place - 1]["role"] in roles:
            return place
    raise Rejected(reason)


def _full(messages: list[Message]) -> int:
    """Through the last answer. What stands after it may hold the only question: such a row answers nothing."""
    end = _last(messages, frozenset({"assistant"}), "no_assistant_turn")
    if all(message["role"] != "user" for message in messages[:end]):
        raise Rejected("no_user_turn")
    return end


_ENDS: dict[str, Callable[[list[Message], int], int]] = {
    "users": _users,
    "to_last_input": lambda messages, _: _last(messages, frozenset({"user", "tool", "system"}), "no_user_turn"),
    "each_user": lambda messages, _: len(messages),
    "full": lambda messages, _: _full(messages),
}


def _steps(messages: list[Message], content: bytes, count: int) -> Cuts:
    """Up to `count` cuts before turns of the assistant that answer something, the lowest hashes, in order."""
    first_user = next(i for i, message in enumerate(messages) if message["role"] == "user")
    points = [
        i
        for i in range(first_user + 1, len(messages))
        if messages[i]["role"] == "assistant" and messages[i - 1]["role"] != "assistant"
    ]
    if not points:
        raise Rejected("no_assistant_turn")
    points.sort(key=lambda point: hashlib.blake2b(content + point.to_bytes(4, "big"), digest_size=8).digest())
    return [(f"@{point}", point) for point in sorted(points[:count])]
