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
from draftmill.extract.literals import dumps
from draftmill.extract.outcome import Candidates, Message, Rejected
from draftmill.extract.schema import Paths, Schema

Finish = Callable[[Any, list[Message], "bytes | None", Candidates], None]
_USER_START, _USER_END = len(b'{"role":"user","content":"'), len(b'"}')


def finisher(schema: Schema) -> Finish:
    """The closure that cuts a conversation and appends what is kept. It raises Rejected."""
    cut, key_of, meta_of = cutter(schema.keep), _dedup_key(schema), _meta(schema)
    find_group = _values(schema.group, schema, "group") if schema.group else None
    find_id, by_steps = schema.id, schema.keep[0] == "steps"

    def finish(row: Any, messages: list[Message], tools: bytes | None, out: Candidates) -> None:
        encoded = _encoded(messages)
        whole = b",".join(encoded)
        content = digest(whole + tools if tools else whole)
        row_id = content.hex() if find_id is None else (_id(find_id, row) or content.hex())
        own_group = find_group(row) if find_group else None
        if by_steps and own_group is None:
            own_group = digest(_users(messages, encoded) + (tools or b""))
        meta = meta_of(row)
        for suffix, places in cut(messages, content):
            if isinstance(places, int):
                chosen, kept = messages[:places], encoded[:places]
            else:
                chosen, kept = [messages[i] for i in places], [encoded[i] for i in places]
            users = _users(chosen, kept)
            dedup = key_of(row, users, tools, suffix)
            out.ids.append(row_id + suffix)
            out.contents.append(content)
            out.dedups.append(dedup)
            out.groups.append(own_group or dedup or content)
            out.conversations.append(conversation := b"[" + b",".join(kept) + b"]")
            out.tools.append(tools)
            out.metas.append(meta)
            out.users.append(users)
            out.size += len(conversation) + len(tools or b"")

    return finish


def _encoded(messages: list[Message]) -> list[bytes]:
    try:
        return [orjson.dumps(message) for message in messages]
    except TypeError:
        pass
    try:
        return [dumps(message) for message in messages]  # whole numbers over 64 bits
    except ValueError as error:
        raise Rejected("cannot_encode", str(error)) from None


def _users(messages: list[Message], encoded: list[bytes]) -> bytes:
    """The texts of the user turns as JSON writes them, one after the other."""
    return b"\n".join(
        [
            text[_USER_START:-_USER_END] if len(message) == 2 else orjson.dumps(message["content"])[1:-1]
            for message, text in zip(messages, encoded)  # noqa: B905 - the inner loop
            if message["role"] == "user"
        ]
    )


def _id(paths: Paths, row: Any) -> str | None:
    value = paths.one(row)
    return value if value is None or type(value) is str else dumps(value).decode()


def _values(paths: tuple[Paths, ...], schema: Schema, kind: str) -> Callable[[Any], bytes | None]:
    """The hash of what `paths` match, salted with the dataset (values mean nothing elsewhere); None if nothing."""
    salt = f"{kind}\0{schema.context.dataset}\0".encode()

    def values(row: Any) -> bytes | None:
        found = [path(row) for path in paths]
        return digest(salt + dumps(found)) if any(found) else None

    return values


def _dedup_key(schema: Schema) -> Callable[[Any, bytes, bytes | None, str], bytes | None]:
    """The duplicate key: declared paths, or the user turns that are kept and the tools, never the system text.

    The cuts that `steps` makes of one row have the same user turns, so their position is part of the key.
    """
    if schema.dedup == ():
        return lambda row, users, tools, suffix: None
    if schema.dedup is None:
        return lambda row, users, tools, suffix: digest(b"\0".join((users, tools or b"", suffix.encode())))
    find = _values(schema.dedup, schema, "dedup")

    def key(row: Any, users: bytes, tools: bytes | None, suffix: str) -> bytes | None:
        found = find(row)
        return digest(found + suffix.encode()) if found and suffix else found

    return key


def _meta(schema: Schema) -> Callable[[Any], bytes | None]:
    if not schema.meta:
        return lambda row: None
    paths = dict(schema.meta)
    return lambda row: dumps({name: path.one(row) for name, path in paths.items()})
