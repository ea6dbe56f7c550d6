"""From a row's messages to what is kept of it: the cut, its id, the keys of duplicates and groups, and meta.

finish = finisher(schema)
finish(row, messages, tools, candidates)      # appends one candidate, or several by `keep: {steps: n}`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from xxhash import xxh3_128_digest as digest

from draftmill.extract.keep import cutter
from draftmill.extract.literals import comparable, dumps
from draftmill.extract.outcome import Candidates, Message
from draftmill.extract.schema import Paths, Schema

# What stands around the text of a conversation that is one user turn.
_BEFORE, _AFTER = len(b'[{"role":"user","content":"'), -len(b'"}]')
ROW_BYTES = 1000
"""What a row takes beside its texts: ten objects, then three copies of its signature."""
Finish = Callable[[Any, list[Message], "bytes | None", Candidates], None]


def finisher(schema: Schema) -> Finish:
    """The closure that cuts a conversation and appends what is kept. It raises Rejected, and Unwritable."""
    cut, key_of, meta_of = cutter(schema.keep), _dedup_key(schema), _meta(schema)
    find_group = _values(schema.group, schema, "group") if schema.group else None
    find_id, by_steps = schema.id, schema.keep[0] == "steps"

    def finish(row: Any, messages: list[Message], tools: bytes | None, out: Candidates) -> None:
        whole = _encoded(messages)
        content = _content(whole, tools)
        row_id = content.hex() if find_id is None else (_id(find_id, row) or content.hex())
        own_group = find_group(row) if find_group else None
        if by_steps and own_group is None:
            own_group = digest(_users(messages, whole) + (tools or b""))
        meta = meta_of(row) if meta_of else None
        for suffix, places in cut(messages, content):
            if places == len(messages):
                kept, conversation = messages, whole
            else:
                kept = messages[:places] if type(places) is int else [messages[i] for i in places]  # type: ignore[union-attr]
                conversation = _encoded(kept)
            users = _users(kept, conversation)
            dedup = key_of(row, users, tools, suffix)
            group = own_group or dedup or content
            out.rows.append((row_id + suffix, content, dedup, group, conversation, tools, meta, users))
            out.size += ROW_BYTES + len(conversation) + len(users) + (len(tools) if tools else 0)

    return finish


def _content(whole: bytes, tools: bytes | None) -> bytes:
    """The hash of the messages, without the brackets around them, and the tools."""
    return digest(whole[1:-1] + tools if tools else whole[1:-1])


def _encoded(messages: list[Message]) -> bytes:
    try:
        return orjson.dumps(messages)
    except TypeError:
        return b"[" + b",".join(map(dumps, messages)) + b"]"  # whole numbers over 64 bits


def _users(messages: list[Message], encoded: bytes) -> bytes:
    """The texts of the user turns as JSON writes them, one after the other. `encoded`: the JSON of the messages."""
    if len(messages) == 1 and len(messages[0]) == 2:
        return encoded[_BEFORE:_AFTER]
    return b"\n".join([orjson.dumps(message["content"])[1:-1] for message in messages if message["role"] == "user"])


def _id(paths: Paths, row: Any) -> str | None:
    value = paths.one(row)
    return value if value is None or type(value) is str else dumps(value).decode()


def _values(paths: tuple[Paths, ...], schema: Schema, kind: str) -> Callable[[Any], bytes | None]:
    """The hash of what `paths` match, salted with the dataset (values mean nothing elsewhere); None if nothing."""
    salt = f"{kind}\0{schema.context.dataset}\0".encode()

    def values(row: Any) -> bytes | None:
        found = [path(row) for path in paths]
        return digest(salt + dumps(comparable(found))) if any(found) else None

    return values


def _dedup_key(schema: Schema) -> Callable[[Any, bytes, bytes | None, str], bytes | None]:
    """The duplicate key: declared paths, or the user turns that are kept and the tools, never the system text.

    The cuts that `steps` makes of one row have the same user turns, so their position is part of the key.
    """
    if schema.dedup == ():
        return lambda row, users, tools, suffix: None
    if schema.dedup is None:
        return lambda row, users, tools, suffix: digest(users + b"\0" + (tools or b"") + b"\0" + suffix.encode())
    find = _values(schema.dedup, schema, "dedup")

    def key(row: Any, users: bytes, tools: bytes | None, suffix: str) -> bytes | None:
        found = find(row)
        return digest(found + suffix.encode()) if found and suffix else found

    return key


def _meta(schema: Schema) -> Callable[[Any], bytes] | None:
    if not schema.meta:
        return None
    paths = dict(schema.meta)
    return lambda row: dumps({name: path.one(row) for name, path in paths.items()})
