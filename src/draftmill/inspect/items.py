"""Lists of items of which some are calls and some results, by their type, and only messages have a role.

{"role": "user", "content": …}, {"type": "function_call", "name": …, …}, {"type": "function_call_output", …}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from draftmill.inspect import names
from draftmill.inspect.conversation import Block, Conversation, inner_path, role_meant
from draftmill.inspect.places import Place, path_text

CALL, RESULT = "function_call", "function_call_output"
CHANNEL = "channel"
LOST_NOTE = "{what} of the types {kinds} are left out"


def find_items(places: Iterable[Place]) -> Place | None:
    """The list of most rows that holds calls, and messages of a user."""
    found = [place for place in places if _are_items([it for it in place.elements() if isinstance(it, dict)])]
    return max(found, key=lambda place: len(place.rows), default=None)


def _are_items(elements: list[Block]) -> bool:
    calls = [it for it in elements if it.get("type") == CALL]
    asked = any(role_meant(it.get("role")) == "user" for it in elements)
    return asked and bool(calls) and all("name" in it and "arguments" in it and "role" not in it for it in calls)


def without_thoughts(conversation: Conversation, notes: list[str]) -> Block:
    """`role` for turns of which some are only thoughts: {"role": "assistant", "channel": "analysis"}."""
    channels = Counter(str(turn.get(CHANNEL)) for turn in conversation.turns)
    thoughts = [name for name in names.THOUGHTS if name in channels]
    if not thoughts:
        return {}
    notes.append(LOST_NOTE.format(kinds=", ".join(f"{name} {channels[name]}" for name in thoughts), what="turns"))
    rules = {f"@.{CHANNEL} == {json.dumps(name)}": "drop" for name in thoughts}
    return {"role": rules | role_rules(conversation.role, conversation.labels)}


def role_rules(key: str, labels: Iterable[Any]) -> Block:
    """Filters that say what the labels at a key of turns mean."""
    path = relative(key)
    return {f"{path} == {json.dumps(label)}": meant for label in labels if (meant := role_meant(label))}


def relative(key: str) -> str:
    """A key of a turn in a filter: `@.content`."""
    path = inner_path(key)
    return f"@{path}" if path.startswith("[") else f"@.{path}"


def items_block(place: Place, notes: list[str]) -> Block:
    """The block of `turns`."""
    elements = [it for it in place.elements() if isinstance(it, dict)]
    labels = dict.fromkeys(label for it in elements if isinstance(label := it.get("role"), str))
    rules = role_rules("role", labels)
    others = dict.fromkeys(str(it.get("type")) for it in elements if not it.get("role"))
    lost = [kind for kind in others if kind not in (CALL, RESULT)]
    if lost:
        notes.append(LOST_NOTE.format(kinds=", ".join(lost), what="items"))
    return {
        "each": path_text(place.keys),
        "role": {f"@.type == '{CALL}'": "assistant", f"@.type == '{RESULT}'": "tool", **rules, "else": "drop"},
        "text": ["content", "output"],
        "tool_calls": {"each": "$", "id": "call_id", "name": "name", "arguments": "arguments"},
    }
