"""Files whose rows are no rows: each is a turn of a conversation, or the file is one object of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from draftmill.inspect import columns as cols
from draftmill.inspect.columns import columns_of
from draftmill.inspect.conversation import Conversation, as_conversation, characters, inner_path, role_meant
from draftmill.inspect.places import Place, path_text

Block = dict[str, Any]
COLUMNS_NOTE = (
    "the file is one object of columns ({names}), which no declaration turns into rows: write rows first, as "
    "`pandas.read_json(FILE).to_json(NEW, orient='records', lines=True)` does"
)
SPLIT_NOTE = COLUMNS_NOTE.replace("read_json(FILE)", "read_json(FILE, orient='split')")


def columns_note(rows: list[Any]) -> str | None:
    """What to do about a file that is one object of columns: lists of one length, or maps of one set of keys."""
    if len(rows) != 1 or not isinstance(rows[0], dict) or len(rows[0]) < 2:
        return None
    row = rows[0]
    if {"columns", "data"} <= row.keys() and isinstance(row["columns"], list) and isinstance(row["data"], list):
        return SPLIT_NOTE.format(names=", ".join(map(str, row["columns"][:4])))
    values = list(row.values())
    lists = all(isinstance(value, list) and len(value) == len(values[0]) > 1 for value in values)
    maps = all(isinstance(value, dict) and value and list(value) == list(values[0]) for value in values)
    inner = (
        [item for value in values for item in (value.values() if isinstance(value, dict) else value)]
        if lists or maps
        else []
    )
    if (maps and not all(key.isdigit() for key in values[0])) or not any(isinstance(item, str) for item in inner):
        return None
    if any(as_conversation(Place((key,), lists=[(0, value)])) for key, value in row.items() if isinstance(value, list)):
        return None
    return COLUMNS_NOTE.format(names=", ".join(list(row)[:4]))


@dataclass(frozen=True, slots=True)
class TurnRows:
    """Rows that are turns: as one conversation, with the keys that say which of several a turn belongs to."""

    conversation: Conversation
    groups: list[str]
    prompts: Block | None
    """The first user turns of the conversations as prompts, where a key tells which are first."""

    def notes(self) -> list[str]:
        """What a person has to know."""
        first = "; its first user turns are taken as prompts" if self.prompts else ""
        return [f"each row is one turn, of which talk says `{self.groups[0]}`: no declaration joins them{first}"]


def envelopes(rows: list[Any]) -> Iterator[Place]:
    """The rows as one list of turns, and what they hold under a key: {"type": "user", "message": {"role": …}}."""
    objects = [row for row in rows if isinstance(row, dict)]
    yield Place((), lists=[(0, objects)])
    for key in dict.fromkeys(key for row in objects for key, value in row.items() if isinstance(value, dict)):
        inside = [row[key] for row in objects if isinstance(row.get(key), dict)]
        if 2 * len(inside) > len(rows):
            yield Place((None, key), lists=[(0, inside)])


def rows_are_turns(rows: list[Any]) -> TurnRows | None:
    """The turns that the rows are, or hold under one key; of these that with most text. None if they are none."""
    found = [it for place in envelopes(rows) if (it := as_conversation(place)) and _answered(it)]
    if not found:
        return None
    best = max(found, key=lambda it: sum(characters(turn.get(it.texts[0])) for turn in it.turns))
    objects = [row for row in rows if isinstance(row, dict)]
    groups = cols.find_groups(columns_of(objects))
    return TurnRows(best, groups, _prompts(best, objects) if groups else None)


def _answered(conversation: Conversation) -> bool:
    return "assistant" in map(role_meant, conversation.labels)


def _prompts(conversation: Conversation, rows: list[Block]) -> Block | None:
    """The turns of users that have no parent, as prompts."""
    parent = next((key for key in rows[0] if "parent" in key.lower()), None)
    label = next((label for label in conversation.labels if role_meant(label) == "user"), None)
    if parent is None or label is None or all(row.get(parent) for row in rows):
        return None
    before = "".join(f"{path_text((key,))}." for key in conversation.place.keys if key)
    role, text = (f"{before}{inner_path(key)}" for key in (conversation.role, conversation.texts[0]))
    return {"prompt": text, "where": {role: label, path_text((parent,)): None}}
