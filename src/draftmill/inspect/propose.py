"""From what was found in rows to a declaration, and notes on what a person has to decide.

proposal = propose(rows, one_document=False)
proposal.schema      # {"turns": {"each": "messages"}, ...}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from draftmill.extract.schema import ROLES
from draftmill.inspect import columns as cols
from draftmill.inspect import names
from draftmill.inspect.beside import answer_beside, question_beside, system_inside
from draftmill.inspect.columns import Columns, columns_of
from draftmill.inspect.conversation import (
    Block,
    Conversation,
    as_conversation,
    as_turn,
    find_conversations,
    find_unnamed,
    inner_path,
    role_meant,
    texts_of,
)
from draftmill.inspect.items import find_items, items_block, without_thoughts
from draftmill.inspect.known import empty_words, tools_beside, without_conversation
from draftmill.inspect.layout import beside_rows, columns_note, envelopes, hints, rows_are_turns
from draftmill.inspect.omitted import omitted
from draftmill.inspect.parts import call_shape, parts_block
from draftmill.inspect.places import Keys, Place, find_places, path_text

PLAIN_CALLS = {("name", "arguments"), ("name", "parameters")}
"""What extract calls the parts of a call by itself."""
BACKWARDS_NOTE = (
    "talks begin with the assistant and end with the user: if the newest turn stands first, turn the lists round before"
)
TRACE_TURNS = 5
"""User turns a row from which on they may be tool output."""


@dataclass(slots=True)
class Proposal:
    """A schema (None: nothing was found), `source.rows`, the conversation it is about, and notes."""

    schema: dict[str, Any] | None = None
    rows: str | None = None
    conversation: Conversation | None = None
    notes: list[str] = field(default_factory=list)


def propose(rows: list[Any], one_document: bool = False) -> Proposal:
    """The declaration that fits `rows`.

    `one_document`: the rows are the elements of one JSON document, so that the whole of it may be one row.
    """
    wrapped = list(_wrapped(rows))
    for path, inner in wrapped:
        proposal = _propose(inner)
        if proposal.schema is not None:
            proposal.rows = path
            proposal.notes += beside_rows(rows[0], path)
            proposal.notes += [
                f"other rows of that form: {other}" for other, rest in wrapped if _alike(inner, rest, path, other)
            ]
            return proposal
    if one_document and as_conversation(Place((), lists=[(0, rows)])) and not cols.find_groups(columns_of(rows)):
        proposal = _propose([rows])
        proposal.rows = "$"
        return proposal
    found = [note for note in (columns_note(rows),) if note]
    proposal = Proposal(notes=found) if found else _propose(rows)
    if proposal.schema is None:
        proposal = _of_turn_rows(rows) or proposal
    if proposal.schema is None and not proposal.notes:
        proposal.notes = hints(columns_of(rows))
    return proposal


def _of_turn_rows(rows: list[Any]) -> Proposal | None:
    """The whole file as one conversation, or its first turns as prompts, where each row is a turn."""
    items = find_items(envelopes(rows))
    if items:
        proposal = _of_items(items, {}, columns_of([rows]))
        proposal.rows = "$"
        return proposal
    found = rows_are_turns(rows)
    if found is None:
        return None
    if found.groups:
        return Proposal(found.prompts, notes=found.notes())
    proposal = _of_conversation([found.conversation], {}, columns_of([rows]))
    proposal.rows = "$"
    return proposal


def _alike(rows: list[Any], others: list[Any], path: str, other: str) -> bool:
    return path != other and isinstance(others[0], dict) and rows[0].keys() == others[0].keys()


def _wrapped(rows: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """(`source.rows`, rows) for one object that is a map of rows, or holds the list of rows."""
    if len(rows) != 1 or not isinstance(rows[0], dict):
        return
    values = list(rows[0].values())
    if len(values) > 1 and all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
        yield "*", values
    lists = {key: value for key, value in rows[0].items() if isinstance(value, list)}
    if any(as_conversation(Place((key,), lists=[(0, value)])) for key, value in lists.items()):
        return  # the object itself is the row
    if names.sides(names.plain_names(rows[0])):
        return
    inner = {
        (key, name): value
        for key, held in rows[0].items()
        for name, value in (held.items() if isinstance(held, dict) else ())
        if isinstance(value, list)
    }
    for keys, value in ({(key,): value for key, value in lists.items()} | inner).items():
        if len(value) > 1 and all(isinstance(item, dict) for item in value):
            yield f"{path_text(keys)}[*]", value


def _propose(rows: list[Any]) -> Proposal:
    columns = columns_of(rows)
    proposal = _of_rows(find_places(rows), columns)
    if proposal.schema is not None:
        proposal.notes += omitted(proposal.schema, columns)
        proposal.notes += [f"several rows share `{key}`: perhaps  group: {key}" for key in cols.find_groups(columns)]
    return proposal


def _of_rows(places: Mapping[Keys, Place], columns: Columns) -> Proposal:
    items = find_items(places.values())
    if items:
        return _of_items(items, places, columns)
    found = find_conversations(places)
    if found:
        return _of_conversation(found, places, columns)
    notes: list[str] = []
    schema = without_conversation(places, columns, notes)
    if schema:
        return Proposal({**schema, **_id(columns)}, notes=notes)
    unnamed = find_unnamed(places)
    return _of_conversation([unnamed], places, columns) if unnamed else Proposal()


def _id(columns: Columns) -> Block:
    key = cols.find_id(columns)
    return {"id": path_text((key,))} if key else {}


def _of_items(items: Place, places: Mapping[Keys, Place], columns: Columns) -> Proposal:
    notes: list[str] = []
    schema: Block = {"turns": items_block(items, notes)}
    if system := cols.find_system(columns, items.keys):
        schema["system"] = path_text(system)
    schema |= tools_beside(cols.find_tools(places, items.keys), []) | _id(columns)
    return Proposal(schema, notes=notes)


# -- a conversation -------------------------------------------------------------------------------


def _of_conversation(found: list[Conversation], places: Mapping[Keys, Place], columns: Columns) -> Proposal:
    first, *others = found
    notes: list[str] = []
    alternatives = _alternatives(first, others, len(columns.rows))
    block = _block(alternatives, notes)
    schema: Block = {"turns": block}
    question = question_beside(first, columns)
    if question or not first.last_roles()["assistant"]:
        answer = answer_beside(first, columns, block)
        blocks = [it for it in (block, question, answer) if it]
        schema["turns"] = blocks if len(blocks) > 1 else block
    system = cols.find_system(columns, first.place.keys)
    if inside := path_text(system) if system else system_inside(first):
        schema["system"] = inside
    schema |= (
        _tools(first, places, columns.texts(system) if system else [])
        | _roles(first, notes)
        | _decode(first)
        | _id(columns)
        | _empty(first)
    )
    having = {number for conversation in alternatives for number in conversation.place.rows}
    where = cols.find_where(columns, having)
    if where:
        schema["where"] = where
    _note_flags(first, notes)
    _note_trace(first, notes)
    return Proposal(schema, conversation=first, notes=notes)


def _alternatives(first: Conversation, others: list[Conversation], rows: int) -> list[Conversation]:
    """The conversation, and those that stand elsewhere in the rows that do not have it."""
    chosen, seen = [first], set(first.place.rows)
    for other in others:
        if len(seen) < rows and other.role == first.role and not other.place.rows & seen:
            chosen.append(other)
            seen |= other.place.rows
    return chosen


def _block(alternatives: list[Conversation], notes: list[str]) -> Block:
    first = alternatives[0]
    each = [_each(it.place, notes) for it in alternatives]
    block: Block = {"each": each[0] if len(each) == 1 else each}
    block |= _keys(first.role, [text for it in alternatives for text in it.texts])
    return block | without_thoughts(first, notes) | parts_block(first, notes) | _foreign_keys(first)


def _each(place: Place, notes: list[str]) -> str:
    """The path to the turns. Lists of one row that all begin alike are no parts of one talk: the last that holds the
    others, or the first of several tries.
    """
    path = path_text(place.keys)
    by_row: dict[int, list[list[Any]]] = {}
    for row, found in place.lists:
        by_row.setdefault(row, []).append(found)
    several = [lists for lists in by_row.values() if len(lists) > 1]
    if not several or not all(it and it[0] == lists[0][0] for lists in several for it in lists):
        return path
    if all(len(one) <= len(other) for lists in several for one, other in pairwise(lists)) and any(
        len(lists[0]) < len(lists[-1]) for lists in several
    ):
        notes.append("a row holds a talk several times, each time longer: the last is taken")
        return "[-1]".join(path.rsplit("[*]", 1))
    notes.append("a row holds several talks that begin alike: the first is taken")
    return "[0]".join(path.rsplit("[*]", 1))


def _foreign_keys(conversation: Conversation) -> Block:
    """Calls and reasoning under a key that is not the usual one."""
    block: Block = {}
    filled = {key for turn in conversation.turns for key, value in turn.items() if value}
    calls = next((key for key in names.ACTIONS if key in filled), None)
    shape = _call_shape(conversation, calls) if calls else None
    block |= {"tool_calls": shape} if shape not in (None, "tool_calls") else {}
    thought = next((key for key in names.REASONING if key in filled), None)
    if thought not in (None, "reasoning_content") and not _repeats(conversation, thought):
        block["reasoning"] = thought
    return block


def _call_shape(conversation: Conversation, key: str) -> str | Block | None:
    """The value of `tool_calls`: the key, or what the parts of its calls are called; None if it holds no calls."""
    held = [turn[key] for turn in conversation.turns if turn.get(key)]
    listed = [call for value in held for call in (value if isinstance(value, list) else [value])]
    given = next((call.keys() for call in listed if isinstance(call, dict)), None)
    if given is None or "function" in given:
        return key if key in names.CALLS else None
    shape = call_shape(key, given)
    if key in names.CALLS and (shape is None or (shape["name"], shape["arguments"]) in PLAIN_CALLS):
        return key
    return shape


def _repeats(conversation: Conversation, key: str) -> bool:
    """Whether the texts at `key` are only an excerpt of the turns' texts, or no texts."""
    pairs = [(turn[key], turn.get(conversation.texts[0])) for turn in conversation.turns if turn.get(key)]
    return any(not isinstance(one, str) or one in "".join(texts_of(text)) for one, text in pairs)


def _keys(role: str, texts: list[str]) -> Block:
    """`role` and `text`, where they are not the usual keys."""
    block = {} if role == "role" else {"role": inner_path(role)}
    paths = [inner_path(text) for text in dict.fromkeys(texts)]
    return block | ({} if paths == ["content"] else {"text": paths[0] if len(paths) == 1 else paths})


def _tools(conversation: Conversation, places: Mapping[Keys, Place], systems: list[str]) -> Block:
    """`tools`, from where they stand, or from the system text: `systems` are the texts of a system column."""
    system_turns = (turn for turn in conversation.turns if role_meant(turn.get(conversation.role)) == "system")
    systems += ["".join(texts_of(turn.get(conversation.texts[0]))) for turn in system_turns]
    return tools_beside(cols.find_tools(places, conversation.place.keys), systems)


def _roles(conversation: Conversation, notes: list[str]) -> Block:
    """Labels in another case; an unknown one, if it can only be the assistant. Others are for a person to say."""
    meant = {label: role_meant(label) for label in conversation.labels}
    unknown = [label for label, role in meant.items() if role is None]
    written = {label: role for label, role in meant.items() if role and label not in ROLES}
    if conversation.system_answers():
        written |= {label: "assistant" for label, role in meant.items() if role == "system"}
        notes.append("the system speaks after the user, and nobody else answers: it is taken for the assistant")
    elif len(unknown) == 1 and "user" in meant.values() and "assistant" not in meant.values():
        written[unknown[0]] = "assistant"
    elif len(unknown) == 1 and "user" not in meant.values() and "assistant" in meant.values():
        written[unknown[0]] = "user"
    elif unknown:
        counts = ", ".join(f"{label} {conversation.labels[label]}" for label in unknown)
        notes.append(f"roles nobody knows ({counts}): add, if so it is,  roles: {{{_likely(conversation, unknown)}}}")
    return {"roles": written} if written else {}


def _likely(conversation: Conversation, unknown: list[str]) -> str:
    """Who the unknown may be: of two, the one who begins asks; beside known roles, drop; else a person says."""
    if len(unknown) < len(conversation.labels):
        return ", ".join(f"{label}: drop" for label in unknown)
    if len(unknown) > 2:
        return ", ".join(f"{label}: …" for label in unknown)
    begins = Counter(
        turn.get(conversation.role) for _, turns in conversation.place.lists if turns and (turn := as_turn(turns[0]))
    )
    first = begins.most_common(1)[0][0]
    return ", ".join(f"{label}: {'user' if label == first else 'assistant'}" for label in unknown)


def _decode(conversation: Conversation) -> Block:
    return {"decode": [path_text(keys) for keys in conversation.place.decode]} if conversation.place.decode else {}


def _empty(conversation: Conversation) -> Block:
    words = empty_words([text for turn in conversation.turns for text in texts_of(turn.get(conversation.texts[0]))])
    return {"empty": words} if words else {}


def _note_flags(conversation: Conversation, notes: list[str]) -> None:
    for key in names.FLAGS:
        values = {value for turn in conversation.turns if isinstance(value := turn.get(key), bool | int | float)}
        if len(values) > 1:
            notes.append(
                f"turns carry `{key}` ({', '.join(map(str, sorted(values)[:4]))}): perhaps  mask: {{flag: {key}}}"
            )


def _note_trace(conversation: Conversation, notes: list[str]) -> None:
    meanings = Counter(role_meant(turn.get(conversation.role)) for turn in conversation.turns)
    share = meanings["user"] / len(conversation.place.rows)
    if share >= TRACE_TURNS and not meanings["tool"]:
        notes.append(f"{share:.0f} user turns a row and no tool turns: if they are tool output, see `keep`")
    half = len(conversation.place.rows) / 2
    if conversation.first_roles()["assistant"] > half and conversation.last_roles()["user"] > half:
        notes.append(BACKWARDS_NOTE)
    if lost := _unanswered(conversation):
        notes.append(f"{lost} calls have no result after them: what stands inside their own turns is left out")


def _unanswered(conversation: Conversation) -> int:
    """How many turns with calls come before another turn of the one who calls."""
    role = conversation.role
    talks = [[turn for element in turns if (turn := as_turn(element))] for _, turns in conversation.place.lists]
    return sum(
        one.get(role) == other.get(role) and any(one.get(key) for key in names.ACTIONS)
        for talk in talks
        for one, other in pairwise(talk)
    )
