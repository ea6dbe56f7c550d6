"""One row: decode, where, join, then turns, system, tools, pairing, keep; a declaration becomes closures.

engine = Engine(schema)
dropped = engine.prepare(row, work) or engine.convert(row, work)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from draftmill.extract import calls
from draftmill.extract.keep import cutter
from draftmill.extract.literals import dumps
from draftmill.extract.outcome import Candidate, Message, Rejected, Work
from draftmill.extract.schema import Join, Paths, Schema, System, Where
from draftmill.extract.texts import blank, to_text
from draftmill.extract.tools import tools_of
from draftmill.extract.turns import builder
from draftmill.paths import Path

Partner = Callable[[str], Any]


class Engine:
    """A schema as closures, made once per process.

    `partner`: for `join`, from the JSON of the key's value to the partner row or None.
    """

    def __init__(self, schema: Schema, partner: Partner | None = None) -> None:
        self._decode, self._select = decoder(schema), selector(schema, partner)
        self._converse, self._finish = conversation_of(schema), finisher(schema)

    def prepare(self, row: Any, work: Work) -> str | None:
        """Decode, filter and join, in place; the name of the filter that dropped the row, or None."""
        self._decode(row, work)
        return self._select(row)

    def convert(self, row: Any, work: Work) -> list[Candidate]:
        """The candidates that come out of a prepared row: one, or several by `keep: {steps: n}`. Raises Rejected."""
        messages, tools = self._converse(row, work)
        return self._finish(row, messages, tools)


# -- before the turns -----------------------------------------------------------------------------


def decoder(schema: Schema) -> Callable[[Any, Work], None]:
    """Puts the value of a JSON text in the text's place. It raises Rejected if one does not parse."""
    paths = [path for alternatives in schema.decode for path in alternatives.options]

    def decode(row: Any, work: Work) -> None:
        def value(match: Any) -> Any:
            if type(match) is not str or not match.strip():
                return match
            return calls.parsed(match, work, "cannot_decode")

        for path in paths:
            path.replace(row, value)

    return decode if paths else lambda row, work: None


def selector(schema: Schema, partner: Partner | None = None) -> Callable[[Any], str | None]:
    """The name of the filter that drops a row (`where` or `join`), or None; joins the partner row."""
    wanted = _wanted(schema.where)
    if schema.join is None:
        return lambda row: None if wanted(row) else "where"
    join = schema.join

    def select(row: Any) -> str | None:
        if join.rows(row) or not wanted(row):
            return "where"
        return None if _join(row, join, partner) else "join"

    return select


def _join(row: Any, join: Join, partner: Partner | None) -> bool:
    key = join_key(join.on, row)
    found = partner(key) if partner and key is not None else None
    if found is not None and type(row) is dict:
        row[join.name] = found
    return found is not None


def join_key(paths: Paths, row: Any) -> str | None:
    """The JSON of the value two rows share; None without one."""
    value = paths.one(row)
    return None if value is None else dumps(value).decode()


def _wanted(where: Where | None) -> Callable[[Any], bool]:
    if where is None:
        return lambda row: True
    if where.condition is not None:
        return where.condition
    tests = [_has(path, value) for path, value in where.values]
    return lambda row: all(test(row) for test in tests)


def _has(path: Path, wanted: Any) -> Callable[[Any], bool]:
    if wanted is None or wanted == "":
        return lambda row: all(match is None or match == "" for match in path(row))
    kind = (int, float) if type(wanted) in (int, float) else type(wanted)
    # True == 1 in Python, not in JSON.
    return lambda row: any(
        match == wanted and isinstance(match, kind) and isinstance(match, bool) is isinstance(wanted, bool)
        for match in path(row)
    )


# -- the conversation -----------------------------------------------------------------------------


def conversation_of(schema: Schema) -> Callable[[Any, Work], tuple[list[Message], bytes | None]]:
    """A function from a row to its messages and tools (JSON), before `keep`. It raises Rejected."""
    build = [builder(block, schema) for block in schema.blocks]
    place_system = _system(schema)
    drop_system = schema.system is not None and schema.system.drop
    find_tools = tools_of(schema.tools) if schema.tools else None
    orphan = schema.orphan_tool

    def converse(row: Any, work: Work) -> tuple[list[Message], bytes | None]:
        messages: list[Message] = []
        for add in build:
            add(row, messages, work)
        place_system(row, messages)
        specs = find_tools(row, messages, work) if find_tools else None
        if drop_system:
            messages = [message for message in messages if message["role"] != "system"]
        messages = calls.pair(messages, orphan, work)
        if not any(message["role"] == "user" for message in messages):
            raise Rejected("no_user_turn")
        return messages, dumps(specs) if specs else None

    return converse


def _system(schema: Schema) -> Callable[[Any, list[Message]], None]:
    system, is_blank = schema.system, blank(schema.empty)
    if system is None or system.drop:
        return lambda row, messages: None

    def place(row: Any, messages: list[Message]) -> None:
        if all(message["role"] != "system" for message in messages):
            text = _system_text(system, row)
            if not is_blank(text):
                messages.insert(0, {"role": "system", "content": text})

    return place


def _system_text(system: System, row: Any) -> str:
    if system.paths is None:
        return system.text or ""
    return "".join(to_text(match, "reject") for match in system.paths(row))


# -- keep and keys --------------------------------------------------------------------------------


def finisher(schema: Schema) -> Callable[[Any, list[Message], bytes | None], list[Candidate]]:
    """A function from a row, its messages and tools to the candidates that come out of it."""
    cut, key_of, meta_of = cutter(schema.keep), _keys(schema), _meta(schema)
    explicit_group = _values(schema.group, schema, "group") if schema.group else None
    find_id = schema.id
    by_steps = schema.keep[0] == "steps"

    def finish(row: Any, messages: list[Message], tools: bytes | None) -> list[Candidate]:
        parts = _encoded(messages)
        content = _digest(b"[", b",".join(parts), b"]", tools or b"")
        own_group = (explicit_group(row) if explicit_group else None) or (
            _all_users(messages, tools) if by_steps else None
        )
        row_id = None if find_id is None else _id(find_id, row)
        meta = meta_of(row)
        candidates = []
        for suffix, places in cut(messages, content):
            users = [messages[i]["content"] for i in places if messages[i]["role"] == "user"]
            dedup = key_of(row, users, tools, suffix)
            candidates.append(
                Candidate(
                    id=None if row_id is None else row_id + suffix,
                    content=_digest(content, suffix.encode()) if suffix else content,
                    dedup=dedup,
                    group=own_group or dedup or content,
                    conversation=b"[" + b",".join([parts[i] for i in places]) + b"]",
                    tools=tools,
                    meta=meta,
                    user_text="\n".join(users),
                )
            )
        return candidates

    return finish


def _all_users(messages: list[Message], tools: bytes | None) -> bytes:
    """The group of the cuts of one row: they, and those of runs with the same user turns, stay together."""
    return _digest(dumps([message["content"] for message in messages if message["role"] == "user"]), tools or b"")


def _encoded(messages: list[Message]) -> list[bytes]:
    try:
        return [dumps(message) for message in messages]
    except ValueError as error:
        raise Rejected("not_unicode", str(error)) from None


def _digest(*parts: bytes) -> bytes:
    hasher = hashlib.sha256(usedforsecurity=False)
    for part in parts:
        hasher.update(part)
    return hasher.digest()[:16]


def _id(paths: Paths, row: Any) -> str | None:
    value = paths.one(row)
    return value if value is None or type(value) is str else dumps(value).decode()


def _values(paths: tuple[Paths, ...], schema: Schema, kind: str) -> Callable[[Any], bytes | None]:
    """The hash of what `paths` match, salted with the dataset (values mean nothing elsewhere); None if nothing."""
    salt = f"{kind}\0{schema.context.dataset}\0".encode()

    def values(row: Any) -> bytes | None:
        found = [path(row) for path in paths]
        return _digest(salt, dumps(found)) if any(found) else None

    return values


def _keys(schema: Schema) -> Callable[[Any, list[str], bytes | None, str], bytes | None]:
    """The duplicate key: of declared paths, or of the user turns that are kept and the tools, never the system text."""
    if schema.dedup == ():
        return lambda row, users, tools, suffix: None
    if schema.dedup is None:
        return lambda row, users, tools, suffix: _digest(dumps(users), tools or b"", suffix.encode())
    find = _values(schema.dedup, schema, "dedup")

    def key(row: Any, users: list[str], tools: bytes | None, suffix: str) -> bytes | None:
        found = find(row)
        return _digest(found, suffix.encode()) if found and suffix else found

    return key


def _meta(schema: Schema) -> Callable[[Any], bytes | None]:
    if not schema.meta:
        return lambda row: None
    paths = dict(schema.meta)
    return lambda row: dumps({name: path.one(row) for name, path in paths.items()})
