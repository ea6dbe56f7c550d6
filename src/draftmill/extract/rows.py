"""One row: decode, where, join, then turns, system, tools, pairing, keep; a declaration becomes closures.

engine = Engine(schema)
dropped = engine.prepare(row, work) or engine.convert(row, work)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from draftmill.extract import calls
from draftmill.extract.keys import finisher
from draftmill.extract.literals import Unwritable, comparable, dumps, prune
from draftmill.extract.outcome import Candidates, Message, Rejected, Work
from draftmill.extract.schema import Join, Paths, Schema, Shape, System, Where
from draftmill.extract.texts import blank, to_text
from draftmill.extract.tools import tools_of
from draftmill.extract.turns import builder, elements_of
from draftmill.paths import Path

Partner = Callable[[str], Any]


class Engine:
    """A schema as closures, made once per process.

    `partner`: for `join`, from the JSON of the key's value to the partner row or None.
    """

    def __init__(self, schema: Schema, partner: Partner | None = None) -> None:
        self._prune, self._decode, self._select = pruner(schema), decoder(schema), selector(schema, partner)
        self._plain = not schema.decode and schema.where is None and schema.join is None
        self._converse, self._finish = conversation_of(schema), finisher(schema)

    def prepare(self, row: Any, work: Work) -> str | None:
        """Decode, filter and join, in place; the name of the filter that dropped the row, or None. Raises Rejected."""
        if work.arrow:
            self._prune(row)
        if self._plain:
            return None
        self._decode(row, work)
        return self._select(row)

    def convert(self, row: Any, work: Work, candidates: Candidates) -> None:
        """Append what comes out of a prepared row: one candidate, or several by `keep: {steps: n}`. Raises Rejected."""
        try:
            messages, tools = self._converse(row, work)
            self._finish(row, messages, tools, candidates)
        except Unwritable as error:
            raise Rejected("cannot_encode", str(error)) from None


# -- before the turns -----------------------------------------------------------------------------


def pruner(schema: Schema) -> Callable[[Any], None]:
    """Takes the nulls that Arrow filled in out of tool specs and calls; texts that hold JSON are not decoded yet."""
    specs = schema.tools.shape.each.options if schema.tools and schema.tools.shape else ()
    blocks = [(elements_of(block), _calls_pruner(block.tool_calls)) for block in schema.blocks if not block.plain]

    def strip(row: Any) -> None:
        for path in specs:
            path.replace(row, prune)
        for elements, strip_calls in blocks:
            for element in elements(row):
                strip_calls(element)

    return strip


def _calls_pruner(shape: Shape | None) -> Callable[[Any], None]:
    if shape is not None:
        paths = shape.each.options

        def by_paths(element: Any) -> None:
            for path in paths:
                path.replace(element, prune)

        return by_paths

    def by_member(element: Any) -> None:
        if type(element) is dict and element.get("tool_calls"):
            element["tool_calls"] = prune(element["tool_calls"])

    return by_member


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
    return None if value is None else dumps(comparable(value)).decode()


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
        if place_system:
            place_system(row, messages)
        tools = find_tools(row, messages, work) if find_tools else None
        if drop_system:
            messages = [message for message in messages if message["role"] != "system"]
        if work.calls:
            messages = calls.pair(messages, orphan, work)
        for message in messages:
            if message["role"] == "user":
                return messages, tools
        raise Rejected("no_user_turn")

    return converse


def _system(schema: Schema) -> Callable[[Any, list[Message]], None] | None:
    system, is_blank = schema.system, blank(schema.empty)
    if system is None or system.drop:
        return None

    def place(row: Any, messages: list[Message]) -> None:
        if all(message["role"] != "system" for message in messages):
            text = next((text for text in _system_texts(system, row) if not is_blank(text)), None)
            if text is not None:
                messages.insert(0, {"role": "system", "content": text})

    return place


def _system_texts(system: System, row: Any) -> Iterator[str]:
    """The texts that may be the system's, the first that is not empty counts."""
    if system.text is not None:
        yield system.text
    for path in system.paths.options if system.paths else ():
        yield "".join(to_text(match, "reject") for match in path(row))
