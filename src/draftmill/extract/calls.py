"""Tool calls in one form, and the pairing of calls and results.

A call is {"id", "type": "function", "function": {"name", "arguments"}}; `arguments` is an object when it
is one or its JSON text parses to one, otherwise the text as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from draftmill.extract.literals import loads, parse
from draftmill.extract.outcome import Message, Rejected, Work
from draftmill.extract.schema import Paths, Shape

CallsOf = Callable[[Any, Work], list[Message]]


def calls_of(shape: Shape | None) -> CallsOf:
    """A function from a turn to its calls in the common form. It raises Rejected for what is no call."""
    if shape is None:
        return lambda turn, work: known_calls(turn.get("tool_calls"), work)
    if not shape.fields:
        return lambda turn, work: [call for found in shape.each(turn) for call in known_calls(found, work)]
    fields = shape.fields

    def foreign(turn: Any, work: Work) -> list[Message]:
        found = [parsed(match, work, "bad_tool_call") if type(match) is str else match for match in shape.each(turn)]
        calls = [_foreign(item, fields, work) for item in spread(found)]
        return [call for call in calls if call is not None]

    return foreign


def spread(matches: list[Any]) -> list[Any]:
    """Matches that are lists, spread one level; nulls left out."""
    found = []
    for match in matches:
        if type(match) is list:
            found += [item for item in match if item is not None]
        elif match is not None:
            found.append(match)
    return found


def known_calls(value: Any, work: Work) -> list[Message]:
    """The calls of a turn that has them in a known form: a list, one call, or JSON texts of these. Raises Rejected."""
    if type(value) is str:
        value = parsed(value, work, "bad_tool_call") if value.strip() else None
    if not value:
        return []
    return [_call(item, work) for item in (value if type(value) is list else [value]) if item is not None]


def _call(item: Any, work: Work) -> Message:
    if type(item) is str:
        item = parsed(item, work, "bad_tool_call")
    if type(item) is not dict:
        raise Rejected("bad_tool_call", f"a {type(item).__name__} where a call was expected")
    function = item.get("function")
    inner = function if type(function) is dict else item
    arguments = inner["arguments"] if "arguments" in inner else inner.get("parameters")
    return make(inner.get("name"), arguments, item.get("id"), work)


def _foreign(item: Any, fields: Mapping[str, Paths], work: Work) -> Message | None:
    """The call in an item, or None if it has neither name nor arguments: with `each: $`, a turn without a call."""

    def one(name: str) -> Any:
        return fields[name].one(item) if name in fields else None

    name, arguments = one("name"), one("arguments")
    if name is None and arguments is None and type(item) is dict:
        return None
    return make(name, arguments, one("id"), work)


def make(name: Any, arguments: Any, call_id: Any, work: Work) -> Message:
    """A call in the common form."""
    work.calls = True
    if type(name) is not str or not name:
        raise Rejected("bad_tool_call", "a call without a name")
    if type(arguments) is str:
        arguments = _object(arguments)
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    if own := id_of(call_id):
        return {"id": own, "type": "function", "function": function}
    return {"type": "function", "function": function}


def id_of(value: Any) -> str:
    """The id of a call or in a result as text; "" if there is none."""
    return value if type(value) is str else str(value) if type(value) is int else ""


def _object(text: str) -> Any:
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return text if text.strip() else {}
    return value if type(value) is dict else text


def parsed(text: str, work: Work, reason: str) -> Any:
    """The value of a text that should hold JSON; Python literals are counted, anything else is Rejected."""
    try:
        value, was_literal = parse(text)
    except ValueError as error:
        raise Rejected(reason, str(error)) from None
    work.notes["python_literals"] += was_literal
    return value


def call_from_text(text: str, work: Work) -> list[Message]:
    """The calls in the text of a `function_call` turn; none if it holds no call (counted)."""
    try:
        return known_calls(parsed(text, work, "bad_tool_call"), work)
    except Rejected:
        work.notes["function_call_as_text"] += 1
        return []


def pair(messages: list[Message], orphan: str, work: Work) -> list[Message]:
    """Give calls without ids an id and each result the id of its call, in order; count results without a call.

    A result without text is an answer if a call waits for it, else an empty turn, which is left out. Raises
    Rejected if a result has no call and `orphan` is "reject".
    """
    waiting: list[tuple[str, bool]] = []  # (id, whether we gave it)
    fresh, kept = _fresh(messages), []
    for message in messages:
        if "tool_calls" in message:
            for call in message["tool_calls"]:
                given = "id" not in call
                if given:
                    call["id"] = next(fresh)
                waiting.append((call["id"], given))
        elif message["role"] == "tool" and not _answer(message, waiting):
            if not message["content"]:
                work.notes["empty_turns"] += 1
                continue
            work.notes["orphan_tool_results"] += 1
            if orphan == "reject":
                raise Rejected("orphan_tool")
        kept.append(message)
    return kept


def _fresh(messages: list[Message]) -> Iterator[str]:
    """Ids that no call of the row has: call_1, call_2, …"""
    taken = {call.get("id") for message in messages for call in message.get("tool_calls", ())}
    yield from (name for number in count(1) if (name := f"call_{number}") not in taken)


def _answer(result: Message, waiting: list[tuple[str, bool]]) -> bool:
    """Whether `result` answers a waiting call, which is then done; its id is set to the call's.

    The call with its id; else, if the result has no id or the call had none, the first in order.
    """
    own = result.get("tool_call_id")
    exact = own is not None and any(own == call_id for call_id, _ in waiting)
    for place, (call_id, given) in enumerate(waiting):
        if own == call_id or (not exact and (own is None or given)):
            result["tool_call_id"] = call_id
            del waiting[place]
            return True
    return False
