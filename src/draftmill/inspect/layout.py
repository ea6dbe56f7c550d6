"""Files whose rows are no rows: each is a turn of a conversation, or the file is one object of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from draftmill.inspect import columns as cols
from draftmill.inspect.columns import Columns, columns_of
from draftmill.inspect.conversation import Block, Conversation, as_conversation, characters, inner_path, role_meant
from draftmill.inspect.places import Place, path_text
from draftmill.inspect.speakers import unknown_speakers

COLUMNS_NOTE = (
    "the file is one object of columns ({names}), which no declaration turns into rows: write rows first, as "
    "`pandas.read_json(FILE).to_json(NEW, orient='records', lines=True)` does"
)
SENTENCE = 4
"""A text of so many words may be meant for a model; a version, or a name, is not."""
ROLES = ("user", "assistant", "…", "…")
SPLIT_NOTE = (
    "the rows are lists, whose columns have names apart ({names}):  source: {{files: …, rows: 'data[*]'}}  and  "
    "turns: {{pairs: {{user: '[0]', assistant: '[1]'}}}},  by the places of the columns"
)


def columns_note(rows: list[Any]) -> str | None:
    """What to do about a file that is one object of columns: lists of one length, or maps from row numbers."""
    row = rows[0] if len(rows) == 1 else None
    if not isinstance(row, dict):
        return None
    if {"columns", "data"} <= row.keys() and isinstance(row["columns"], list) and isinstance(row["data"], list):
        return SPLIT_NOTE.format(names=", ".join(map(str, row["columns"][:4])))
    talks = any(
        isinstance(held, list) and as_conversation(Place((key,), lists=[(0, held)])) for key, held in row.items()
    )
    return None if talks or not _are_columns(row) else COLUMNS_NOTE.format(names=", ".join(list(row)[:4]))


def beside_rows(document: Any, path: str) -> Iterator[str]:
    """Notes on texts of the file that stand beside the rows at `path`: an instruction for all of them, or a warning."""
    for key, value in document.items() if path != "*" else ():
        texts = value if isinstance(value, list) else [value]
        if all(isinstance(text, str) for text in texts) and any(len(text.split()) >= SENTENCE for text in texts):
            yield f"`{key}` stands beside the rows, where no path leads; if all need it:  system: {{text: …}}"


def _are_columns(value: Any) -> bool:
    """Whether an object holds lists of one length, or maps with the same numbers as keys, some of texts."""
    held = list(value.values()) if isinstance(value, dict) else []
    if len(held) < 2:
        return False
    if all(isinstance(column, dict) and list(column) == list(held[0]) for column in held):
        held = [list(column.values()) for column in held] if all(map(str.isdigit, held[0])) else []
    lists = bool(held) and all(isinstance(column, list) and len(column) == len(held[0]) > 1 for column in held)
    return lists and any(isinstance(item, str) for column in held for item in column)


def hints(columns: Columns) -> list[str]:
    """What a person may want to know of rows in which nothing was found."""
    found = []
    for keys, values in columns.values.items():
        path = path_text(keys)
        if columns.is_text(keys) and (marks := unknown_speakers(columns.texts(keys))):
            roles = ", ".join(f"{role}: '{mark}'" for role, mark in zip(ROLES, marks, strict=False))
            found.append(
                f"`{path}` may hold talks of {' and '.join(marks)} If so,  turns: {{text: {path}, split: {{{roles}}}}}"
            )
        if values and all(map(_are_columns, values)):
            found.append(f"`{path}` holds a list for each key, as columns of turns: make it a list of objects first")
    return found


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
