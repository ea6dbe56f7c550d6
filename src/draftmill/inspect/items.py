"""Lists of items of which some are calls and some results, by their type, and only messages have a role.

{"role": "user", "content": …}, {"type": "function_call", "name": …, …}, {"type": "function_call_output", …}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from draftmill.inspect.conversation import role_meant
from draftmill.inspect.places import Place, path_text

Block = dict[str, Any]
CALL, RESULT = "function_call", "function_call_output"
LOST_NOTE = "items of the types {kinds} are left out"


def find_items(places: Iterable[Place]) -> Place | None:
    """The list of most rows that holds calls, and messages of a user."""
    found = [place for place in places if _are_items([it for it in place.elements() if isinstance(it, dict)])]
    return max(found, key=lambda place: len(place.rows), default=None)


def _are_items(elements: list[Block]) -> bool:
    calls = [it for it in elements if it.get("type") == CALL]
    asked = any(role_meant(it.get("role")) == "user" for it in elements)
    return asked and bool(calls) and all("name" in it and "arguments" in it and "role" not in it for it in calls)


def items_block(place: Place, notes: list[str]) -> Block:
    """The block of `turns`."""
    elements = [it for it in place.elements() if isinstance(it, dict)]
    labels = dict.fromkeys(label for it in elements if isinstance(label := it.get("role"), str))
    rules = {f"@.role == {json.dumps(label)}": meant for label in labels if (meant := role_meant(label))}
    others = dict.fromkeys(str(it.get("type")) for it in elements if not it.get("role"))
    lost = [kind for kind in others if kind not in (CALL, RESULT)]
    if lost:
        notes.append(LOST_NOTE.format(kinds=", ".join(lost)))
    return {
        "each": path_text(place.keys),
        "role": {f"@.type == '{CALL}'": "assistant", f"@.type == '{RESULT}'": "tool", **rules, "else": "drop"},
        "text": ["content", "output"],
        "tool_calls": {"each": "$", "id": "call_id", "name": "name", "arguments": "arguments"},
    }
