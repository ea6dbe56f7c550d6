"""Contents that are lists of parts: reasoning, calls and results among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftmill.inspect import names
from draftmill.inspect.conversation import Block, Conversation, inner_path, part_kind
from draftmill.inspect.items import relative, role_rules

IMAGE_NOTE = (
    "contents hold parts that are no text ({kinds}); they are left out: `parts: reject` drops such rows instead"
)


def parts_block(conversation: Conversation, notes: list[str]) -> Block:
    """Reasoning and calls that stand among the parts; what is neither is left out of the text."""
    kinds = conversation.parts
    if not kinds:
        return {}
    block: Block = {"parts": "drop"}
    content, other = conversation.texts[0], []
    for kind in kinds:
        example = _part(conversation, kind)
        inner = next((key for key in ("value", "text", "content", kind) if isinstance(example.get(key), str)), None)
        chosen = f"type={kind}" if kind.isidentifier() else f"type='{kind}'"
        if kind in names.REASONING and inner:
            block["reasoning"] = f"{content}[{chosen}].{inner}"
        elif kind in names.CALLS and inner:
            block["tool_calls"] = f"{content}[{chosen}].{inner}"
        elif kind in names.FUNCTION_CALLS and isinstance(example.get(kind), dict):
            block["tool_calls"] = {"each": f"{content}[*].{kind}", "name": "name", "arguments": "args"}
        elif kind in names.FUNCTION_RESULTS:
            block |= _tool_results(conversation, f"@.{kind}", f"[*].{kind}.response")
        elif result := _result_key(kind, example):
            block |= _tool_results(conversation, f"@.type == '{kind}'", f"[{chosen}].{result}")
        elif "type" in example and (shape := call_shape(f"{content}[{chosen}]", example)):
            block["tool_calls"] = shape
        else:
            other.append(f"{kind} {kinds[kind]}")
    if other:
        notes.append(IMAGE_NOTE.format(kinds=", ".join(other)))
    return block


def call_shape(each: str, call: Collection[str]) -> Block | None:
    """`tool_calls` with what the parts of a call with these keys are called; None if they are not those of a call."""
    found = {
        "id": next((key for key in names.CALL_IDS if key in call), None),
        "name": next((key for key in names.CALL_NAMES if key in call), None),
        "arguments": next((key for key in names.ARGUMENTS if key in call), None),
    }
    if found["name"] is None or found["arguments"] is None:
        return None
    return {"each": each} | {part: key for part, key in found.items() if key}


def _result_key(kind: str, part: Mapping[str, Any]) -> str | None:
    """Where a part that names the call it answers holds the answer; one that holds arguments too is the call itself."""
    named = kind == "tool_result" or any(key in part for key in names.RESULT_IDS)
    if not named or any(key in part for key in names.ARGUMENTS):
        return None
    return next((key for key in names.RESULTS if key in part), None)


def _tool_results(conversation: Conversation, test: str, inside: str) -> Block:
    """Results that came in turns of the user: such a turn is the tool's. `test` is true of a part that is a result."""
    content, labels = relative(conversation.texts[0]), role_rules(conversation.role, conversation.labels)
    results = f"{inner_path(conversation.texts[0])}{inside}"
    return {"role": {f"{content}[?{test}]": "tool", **labels}, "text": [results, *conversation.texts]}


def _part(conversation: Conversation, kind: str) -> Mapping[str, Any]:
    contents = (turn.get(conversation.texts[0]) for turn in conversation.turns)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return next(part for part in parts if isinstance(part, dict) and part_kind(part) == kind)
