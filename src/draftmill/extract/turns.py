"""Blocks of `turns` as closures: from a row to messages.

    block(row, messages, work)      appends the block's messages

A message is {"role", "content", "reasoning"?, "tool_calls"?, "tool_call_id"?, "name"?, "flag"?}. Turns without
text and calls are left out, and counted; of results without text, `calls.pair` keeps those that answer a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any

from draftmill.extract.calls import CallsOf, call_from_text, calls_of, id_of, known_calls, spread
from draftmill.extract.outcome import Message, Rejected, UnknownRole, Work
from draftmill.extract.schema import Block, Paths, Role, Schema
from draftmill.extract.speakers import splitter
from draftmill.extract.texts import Blank, TextOf, blank, plain_name, text_of, to_text

Build = Callable[[Any, list[Message], Work], None]
"""Appends the messages of a row, of a list of turns, or of one turn."""
RoleOf = Callable[[Any], str | None]


def builder(block: Block, schema: Schema) -> Build:
    """The closure of one block."""
    is_blank = blank(schema.empty)
    elements = elements_of(block)
    if block.plain:
        add = _prompt(is_blank)
    elif block.pairs:
        add = _pairs(block, schema, is_blank)
    elif block.split:
        add = _split(block, schema, is_blank)
    else:
        add = _turns(block, schema, is_blank)
    if block.take == "all":
        return lambda row, messages, work: add(elements(row), messages, work)
    place = 0 if block.take == "first" else -1

    def take(row: Any, messages: list[Message], work: Work) -> None:
        found: list[Message] = []
        add(elements(row), found, work)
        with_text = [message for message in found if message["content"]]
        messages += with_text[place:][:1]

    return take


def elements_of(block: Block) -> Callable[[Any], list[Any]]:
    """The elements that are turns: of the first alternative that gives any, lists spread one level."""
    if block.each is None:
        return lambda row: [row]
    if block.plain:
        return block.each
    name = plain_name(block.each)
    if name is not None:

        def member(row: Any) -> list[Any]:
            value = row.get(name) if type(row) is dict else None
            return value if type(value) is list else [] if value is None or value == "" else [value]

        return member
    options = block.each.options
    if len(options) == 1:
        only = options[0]
        return lambda row: spread(only(row))
    return lambda row: next((found for path in options if (found := spread(path(row)))), [])


# -- roles ----------------------------------------------------------------------------------------


def role_of(role: Role, known: Mapping[str, str]) -> RoleOf:
    """A function from a turn to its role (None: it has no label). It raises UnknownRole."""
    if role.constant is not None:
        constant = role.constant
        return lambda turn: constant
    if role.path is None:
        return _role_by_rules(role)
    paths, name = role.path, plain_name(role.path)
    get = known.get

    def by_path(turn: Any) -> str | None:
        return _resolve(paths.one(turn), known)

    def by_member(turn: Any) -> str | None:
        if type(turn) is not dict:
            return None
        label = turn.get(name)
        return (get(label) if type(label) is str else None) or _resolve(label, known)

    return by_path if name is None else by_member


def label_of(role: Role, known: Mapping[str, str]) -> Callable[[Any], tuple[str, bool]]:
    """A function from a turn to its label, for messages, and whether a role is declared for it."""
    find = role_of(role, known)

    def label(turn: Any) -> tuple[str, bool]:
        try:
            found = find(turn)
        except UnknownRole as unknown:
            return unknown.detail, False
        written = role.path.one(turn) if role.path else found
        return (written if type(written) is str else "(no label)"), True

    return label


def _role_by_rules(role: Role) -> RoleOf:
    def by_rules(turn: Any) -> str:
        for condition, name in role.rules:
            if condition(turn):
                return name
        if role.otherwise is None:
            raise UnknownRole("(no rule of `role` holds)")
        return role.otherwise

    return by_rules


def _resolve(label: Any, known: Mapping[str, str]) -> str | None:
    if label is None or label == "":
        return None
    if type(label) is list or type(label) is dict:
        raise UnknownRole("(a list)" if type(label) is list else "(an object)")
    text = label if type(label) is str else repr(label)
    if text not in known:
        raise UnknownRole(text)
    return known[text]


# -- turns ----------------------------------------------------------------------------------------


def _turns(block: Block, schema: Schema, is_blank: Blank) -> Build:
    if block.role.in_turn:
        return _in_turn(block, schema, is_blank)
    one = _turn(block, schema, is_blank)
    role_key = plain_name(block.role.path) if block.role.path else None
    text_key = None if block.text.joined else plain_name(block.text.options[0])
    default = block.tool_calls is None and block.reasoning is None
    if block.each and schema.flag is None and default and role_key and text_key:
        return _plain_turns(block, schema, role_key, text_key, one)

    def add(items: list[Any], messages: list[Message], work: Work) -> None:
        for item in items:
            one(item, messages, work)

    return add


def _in_turn(block: Block, schema: Schema, is_blank: Blank) -> Build:
    """The closure of turns whose place says who speaks."""
    roles = (Role(constant=name) for name in block.role.in_turn)
    each = [_turn(replace(block, role=role), schema, is_blank) for role in roles]

    def add(items: list[Any], messages: list[Message], work: Work) -> None:
        for one, item in zip(cycle(each), items, strict=False):
            one(item, messages, work)

    return add


def _plain_turns(block: Block, schema: Schema, role_key: str, text_key: str, one: Build) -> Build:
    """The closure of turns that are mostly a known label and a text, without the calls that other turns need."""
    known = {label: role for label, role in schema.roles.items() if role in ("user", "assistant", "system", "tool")}
    words, parts, several = schema.empty - {""}, block.parts, len(block.text.options) > 1
    reasoning = _reasoning(None)

    def add(items: list[Any], messages: list[Message], work: Work) -> None:
        append = messages.append
        for item in items:
            try:
                role, text = known[item[role_key]], item[text_key]
            except (KeyError, TypeError):
                one(item, messages, work)
                continue
            if type(text) is list:
                text = to_text(text, parts)
            if type(text) is not str or not text or text.isspace() or (words and text.strip() in words):
                if several or (text is not None and type(text) is not str):
                    one(item, messages, work)
                    continue
                text = ""
            if role == "tool":
                append(_result(item, text, work))
            elif role == "assistant" and ((calls := item.get("tool_calls")) or item.get("reasoning_content")):
                _add(_assistant(text, known_calls(calls, work), reasoning(item)), messages, work)
            elif text:
                append({"role": role, "content": text})
            else:
                work.notes["empty_turns"] += 1

    return add


def _turn(block: Block, schema: Schema, is_blank: Blank) -> Build:
    """The closure of one turn."""
    find_role, find_text = role_of(block.role, schema.roles), text_of(block.text, block.parts, is_blank)
    find_result = text_of(block.text, block.parts, is_blank, objects=True)
    calls, reasoning = calls_of(block.tool_calls), _reasoning(block.reasoning)
    flag, by_rules, constant = schema.flag, bool(block.role.rules), block.role.constant
    by_path = block.role.path is not None

    def one(item: Any, messages: list[Message], work: Work) -> None:
        # ["user", "hello"] has a label if `role` is "[0]".
        if type(item) is not dict and not (by_path and type(item) is list and find_role(item)):
            said_by = find_role(item) if by_rules and type(item) is str else constant
            if said_by != "drop":
                _say(said_by or "", _bare(item, said_by), messages, work, is_blank)
            return
        role = find_role(item)
        if role == "drop":
            return
        text = find_result(item) if role in ("tool", "function_call") else find_text(item)
        message = _message(
            item if type(item) is dict else {}, role, "" if is_blank(text) else text, calls, reasoning, work
        )
        if message is None:
            work.notes["empty_turns"] += 1
            return
        if block.each is None:  # the row's own `name` is no tool's
            message.pop("name", None)
            message.pop("tool_call_id", None)
        if flag is not None:
            _mark([message], flag, item)
        messages.append(message)

    return one


def _bare(item: Any, role: str | None) -> str:
    """The text of a turn that is no object: it is one, or null."""
    if item is None or (type(item) is str and (role is not None or not item.strip())):
        return item or ""
    kind = "a_string" if type(item) is str else "a_list" if type(item) is list else "no_object"
    raise Rejected(f"turn_is_{kind}")


def _message(
    item: Message, role: str | None, text: str, calls: CallsOf, reasoning: TextOf, work: Work
) -> Message | None:
    """The message of a turn that is an object, or None if it is empty."""
    if role == "assistant":
        return _assistant(text, calls(item, work), reasoning(item))
    if role == "tool":
        return _result(item, text, work)
    if not text:
        return None
    if role is None:
        raise Rejected("turn_without_role")
    if role == "function_call":
        found = call_from_text(text, work)
        return _assistant("" if found else text, found, "")
    return {"role": role, "content": text}


def _result(item: Message, text: str, work: Work) -> Message:
    work.calls = True
    message: Message = {"role": "tool", "content": text}
    if own := id_of(item.get("tool_call_id")):
        message["tool_call_id"] = own
    if type(name := item.get("name")) is str and name:
        message["name"] = name
    return message


def _assistant(text: str, calls: list[Message], reasoning: str) -> Message | None:
    if not text and not calls:
        return None
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _reasoning(paths: Paths | None) -> TextOf:
    if paths is not None:
        return lambda turn: "".join(found for found in paths(turn) if type(found) is str)

    def default(turn: Any) -> str:
        value = turn.get("reasoning_content")
        return value if type(value) is str else ""

    return default


def _mark(messages: list[Message], flag: Paths, item: Any) -> None:
    """Put the flag that an element has, if any, on the messages that came of it. Raises Rejected."""
    if (value := flag.one(item)) is None:
        return
    if not isinstance(value, bool | int | float):
        raise Rejected("bad_flag", f"a {type(value).__name__} where true, false or a weight was expected")
    for message in messages:
        message["flag"] = value


# -- other forms ----------------------------------------------------------------------------------


def _prompt(is_blank: Blank) -> Build:
    def add(items: list[Any], messages: list[Message], work: Work) -> None:
        for item in items:
            if type(item) is not str:
                raise Rejected("prompt_is_a_list" if type(item) is list else "prompt_is_no_text")
            if not is_blank(item):
                messages.append({"role": "user", "content": item})

    return add


def _pairs(block: Block, schema: Schema, is_blank: Blank) -> Build:
    sides = [(role, text_of(text, block.parts, is_blank)) for role, text in block.pairs if role != "drop"]

    def add(items: list[Any], messages: list[Message], work: Work) -> None:
        for item in items:
            before = len(messages)
            for role, find in sides:
                _say(role, find(item), messages, work, is_blank)
            if schema.flag is not None:
                _mark(messages[before:], schema.flag, item)

    return add


def _split(block: Block, schema: Schema, is_blank: Blank) -> Build:
    assert block.split is not None
    find_text, cut = text_of(block.text, block.parts, is_blank), splitter(block.split)

    def add(items: list[Any], messages: list[Message], work: Work) -> None:
        for item in items:
            before = len(messages)
            for role, text in cut(item if type(item) is str else find_text(item)):
                _say(role, text, messages, work, is_blank)
            if schema.flag is not None:
                _mark(messages[before:], schema.flag, item)

    return add


def _say(role: str, text: str, messages: list[Message], work: Work, is_blank: Blank) -> None:
    """Append the turn of a role that is a text and nothing else; empty ones are counted."""
    message = _message({}, role, "" if is_blank(text) else text, lambda item, work: [], lambda item: "", work)
    _add(message, messages, work)


def _add(message: Message | None, messages: list[Message], work: Work) -> None:
    if message is None:
        work.notes["empty_turns"] += 1
    else:
        messages.append(message)
