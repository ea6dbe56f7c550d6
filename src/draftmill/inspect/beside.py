"""What stands beside a list of turns: the answer that it lacks, the question that it is the history of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from draftmill.inspect import columns as cols
from draftmill.inspect import names
from draftmill.inspect.columns import Columns
from draftmill.inspect.conversation import Block, Conversation, characters, flat, role_meant
from draftmill.inspect.places import path_text

MAX_DEPTH = 5
ANSWERED_SHARE = 0.5
"""An answer is taken from where at least so many rows have one."""


def question_beside(conversation: Conversation, columns: Columns) -> Block | None:
    """The block of the last question, where the turns are only what was said before it."""
    if conversation.place.keys[-1:] not in {(name,) for name in names.HISTORY}:
        return None
    known = cols.text_columns(columns)
    asked = next((known[name] for name in (*names.USER, "message") if name in known), None)
    return {"role": {"as": "user"}, "text": path_text((asked,))} if asked else None


def system_inside(conversation: Conversation) -> str | None:
    """The path of a system text that is a key of the first turn, where no turn is the system's."""
    keys = conversation.place.keys
    firsts = [flat(turns[0]) for _, turns in conversation.place.lists if turns and isinstance(turns[0], dict)]
    if None in keys or "system" in map(role_meant, conversation.labels) or not firsts:
        return None
    for name in names.SYSTEM:
        if name not in conversation.texts and 2 * sum(bool(characters(turn.get(name))) for turn in firsts) > len(
            firsts
        ):
            return f"{path_text(keys) if keys else ''}[0].{name}"
    return None


def answer_beside(conversation: Conversation, columns: Columns, block: Block) -> Block | None:
    """The block of an answer that stands elsewhere in the row; `block` is that of the turns, which end without one."""
    known = cols.text_columns(columns)
    text = next((known[name] for name in names.ASSISTANT if name in known), None)
    if text and not all(it.lstrip().startswith("{") for it in columns.texts((text,))):
        return {"role": {"as": "assistant"}, "text": path_text((text,))}
    path = _answer_path(conversation, columns)
    if path is None:
        return None
    return {**block, "each": path}


def _answer_path(conversation: Conversation, columns: Columns) -> str | None:
    """The path that leads to a turn of the assistant, or a list of such, in most rows: `choices[0].message`."""
    paths = Counter[str]()
    for row in columns.rows:
        keys = [key for key in row if key != "rejected"] if isinstance(row, dict) else []
        keys.sort(key=lambda key: key not in names.ASSISTANT)
        paths.update([path for key in keys for path in _turns_in(row[key], path_text((key,)), conversation, 1)][:1])
    best = paths.most_common(1)
    return best[0][0] if best and best[0][1] >= ANSWERED_SHARE * len(columns.rows) else None


def _turns_in(value: Any, path: str, conversation: Conversation, depth: int) -> Iterator[str]:
    if isinstance(value, list) and value:
        if all(_is_answer(item, conversation) for item in value):
            yield path if len(value) == 1 else f"{path}[0]"  # of several, each is an answer by itself
        elif path != path_text(conversation.place.keys):
            yield from _turns_in(value[0], f"{path}[0]", conversation, depth + 1)
    elif _is_answer(value, conversation):
        yield path
    elif isinstance(value, dict) and depth < MAX_DEPTH:
        for key, item in value.items():
            step = path_text(("x", key)).removeprefix("x")
            yield from _turns_in(item, path + step, conversation, depth + 1)


def _is_answer(value: Any, conversation: Conversation) -> bool:
    turn = flat(value) if isinstance(value, dict) else {}
    filled = any(characters(turn.get(key)) for key in conversation.texts) or any(turn.get(key) for key in names.CALLS)
    return role_meant(turn.get(conversation.role)) == "assistant" and filled
