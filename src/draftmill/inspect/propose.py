"""From what was found in rows to a declaration, and notes on what a person has to decide.

proposal = propose(rows, one_document=False)
proposal.schema      # {"turns": {"each": "messages"}, ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftmill.inspect import columns as cols
from draftmill.inspect import names
from draftmill.inspect.columns import Columns, columns_of
from draftmill.inspect.conversation import Conversation, as_conversation, find_conversations, role_meant, texts_of
from draftmill.inspect.places import Keys, Place, find_places, path_text
from draftmill.inspect.speakers import find_speakers, starts_with_mark

Block = dict[str, Any]
EMPTY_WORDS = ("None", "null", "N/A", "NaN")
IMAGE_NOTE = (
    "contents hold parts that are no text ({kinds}); they are left out: `parts: reject` drops such rows instead"
)


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
    places, columns = find_places(rows), columns_of(rows)
    found = find_conversations(places)
    if found:
        return _of_conversation(found, places, columns)
    if one_document and as_conversation(Place((), lists=[(0, rows)])):
        whole: list[Any] = [rows]
        proposal = _of_conversation(find_conversations(find_places(whole)), {}, columns_of(whole))
        proposal.rows = "$"
        return proposal
    for attempt in (_of_pairs, _of_columns, _of_prompts, _of_chats):
        schema = attempt(places, columns)
        if schema is not None:
            return Proposal({**schema, **_id(columns)})
    return Proposal()


def _id(columns: Columns) -> Block:
    key = cols.find_id(columns)
    return {"id": path_text((key,))} if key else {}


# -- a conversation -------------------------------------------------------------------------------


def _of_conversation(found: list[Conversation], places: Mapping[Keys, Place], columns: Columns) -> Proposal:
    first, *others = found
    notes: list[str] = []
    alternatives = _alternatives(first, others, columns.rows)
    block = _block(alternatives, notes)
    schema: Block = {"turns": block}
    answer = _answer_beside(first, columns)
    if answer:
        schema["turns"] = [block, answer]
    system = cols.find_system(columns, first.place.keys)
    if system and any(columns.texts(system)):
        schema["system"] = path_text(system)
    schema |= _tools(first, places) | _roles(first, notes) | _decode(first) | _id(columns) | _empty(first)
    _note_flags(first, notes)
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
    each = [path_text(it.place.keys) for it in alternatives]
    block: Block = {"each": each[0] if len(each) == 1 else each}
    if first.role != "role":
        block["role"] = path_text(first.role.split("."))
    texts = list(dict.fromkeys(path_text(key.split(".")) for it in alternatives for key in it.texts))
    if texts != ["content"]:
        block["text"] = texts[0] if len(texts) == 1 else texts
    return block | _parts(first, notes) | _foreign_keys(first)


def _parts(conversation: Conversation, notes: list[str]) -> Block:
    """Reasoning and calls that stand among the parts; what is neither is left out of the text."""
    kinds = conversation.parts
    if not kinds:
        return {}
    block: Block = {"parts": "drop"}
    content, other = conversation.texts[0], []
    for kind in kinds:
        example = _part(conversation, kind)
        inner = next((key for key in ("value", "text", "content", kind) if isinstance(example.get(key), str)), None)
        if kind in names.REASONING and inner:
            block["reasoning"] = f"{content}[type={kind}].{inner}"
        elif kind in names.CALLS and inner:
            block["tool_calls"] = f"{content}[type={kind}].{inner}"
        elif kind == "tool_use":
            block["tool_calls"] = {
                "each": f"{content}[type=tool_use]",
                "id": "id",
                "name": "name",
                "arguments": "input",
            }
        else:
            other.append(f"{kind} {kinds[kind]}")
    if other:
        notes.append(IMAGE_NOTE.format(kinds=", ".join(other)))
    return block


def _part(conversation: Conversation, kind: str) -> Mapping[str, Any]:
    contents = (turn.get(conversation.texts[0]) for turn in conversation.turns)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return next(part for part in parts if isinstance(part, dict) and str(part.get("type")) == kind)


def _foreign_keys(conversation: Conversation) -> Block:
    """Calls and reasoning under a key that is not the usual one."""
    block: Block = {}
    filled = {key for turn in conversation.turns for key, value in turn.items() if value}
    if "tool_calls" not in filled:
        call = next((key for key in names.CALLS[1:] if key in filled), None)
        block |= {"tool_calls": call} if call else {}
    thought = next((key for key in names.REASONING if key in filled), None)
    if thought not in (None, "reasoning_content") and not _repeats(conversation, thought):
        block["reasoning"] = thought
    return block


def _repeats(conversation: Conversation, key: str) -> bool:
    """Whether the texts at `key` are only an excerpt of the turns' texts, or no texts."""
    pairs = [(turn[key], turn.get(conversation.texts[0])) for turn in conversation.turns if turn.get(key)]
    return any(not isinstance(one, str) or one in "".join(texts_of(text)) for one, text in pairs)


def _answer_beside(conversation: Conversation, columns: Columns) -> Block | None:
    """The block of an answer that stands in a column of its own, where the turns never end with one."""
    if conversation.last_roles()["assistant"] > 0:
        return None
    known = cols.text_columns(columns)
    text = next((path_text((known[name],)) for name in names.ASSISTANT if name in known), None)
    if text:
        return {"role": {"as": "assistant"}, "text": text}
    for name in names.ASSISTANT:  # the answer may be a turn: {from: gpt, value: …}
        turns = [value for value in columns.values.get((name,), ()) if isinstance(value, dict)]
        if turns and all(role_meant(turn.get(conversation.role)) == "assistant" for turn in turns):
            block = {"each": name, "role": conversation.role, "text": list(conversation.texts)}
            return {
                key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in block.items()
            }
    return None


def _tools(conversation: Conversation, places: Mapping[Keys, Place]) -> Block:
    system_turns = (turn for turn in conversation.turns if role_meant(turn.get(conversation.role)) == "system")
    systems = ["".join(texts_of(turn.get(conversation.texts[0]))) for turn in system_turns]
    inside = bool(systems) and cols.has_tools_inside(systems)
    keys = cols.find_tools(places, conversation.place.keys)
    if keys:
        path = path_text(keys)
        return {"tools": {"path": path, "twice": "strip"} if inside else path}
    return {"tools": {"from": "system", "between": ["<tools>", "</tools>"], "twice": "strip"}} if inside else {}


def _roles(conversation: Conversation, notes: list[str]) -> Block:
    from draftmill.extract.schema import ROLES

    unknown = [label for label in conversation.labels if role_meant(label) is None]
    if unknown:
        counts = ", ".join(f"{label} {conversation.labels[label]}" for label in unknown)
        notes.append(f"roles nobody knows ({counts}): add  roles: {{{unknown[0]}: user}}  (or assistant, tool, drop)")
    cased = {label: role_meant(label) for label in conversation.labels if label not in ROLES and role_meant(label)}
    return {"roles": cased} if cased else {}


def _decode(conversation: Conversation) -> Block:
    return {"decode": [path_text(keys) for keys in conversation.place.decode]} if conversation.place.decode else {}


def _empty(conversation: Conversation) -> Block:
    texts = [text.strip() for turn in conversation.turns for text in texts_of(turn.get(conversation.texts[0]))]
    words = [word for word in EMPTY_WORDS if texts.count(word) > 0.005 * len(texts)]
    return {"empty": words} if words else {}


def _note_flags(conversation: Conversation, notes: list[str]) -> None:
    for key in names.FLAGS:
        values = {value for turn in conversation.turns if isinstance(value := turn.get(key), bool | int | float)}
        if len(values) > 1:
            notes.append(
                f"turns carry `{key}` ({', '.join(map(str, sorted(values)[:4]))}): perhaps  mask: {{flag: {key}}}"
            )


# -- no conversation ------------------------------------------------------------------------------


def _system_column(columns: Columns) -> Block:
    known = cols.text_columns(columns)
    key = next((known[name.lower()] for name in names.SYSTEM if name.lower() in known), None)
    return {"system": path_text((key,))} if key else {}


def _of_pairs(places: Mapping[Keys, Place], columns: Columns) -> Block | None:
    """Elements that hold both sides: {human, assistant}."""
    for keys, place in sorted(places.items(), key=lambda item: (-len(item[1].rows), len(item[0]))):
        elements = list(place.elements())
        if not elements or not all(isinstance(element, dict) for element in elements):
            continue
        known = names.plain_names(
            dict.fromkeys(key for element in elements for key, v in element.items() if isinstance(v, str))
        )
        found = names.sides(known)
        if found and found[1] and len(place.rows) > cols.TOOLS_SHARE * columns.rows:
            system = {"system": path_text((known["system"],))} if "system" in known else {}
            pairs = {**system, "user": path_text((known[found[0]],)), "assistant": path_text((known[found[1]],))}
            return {"turns": {"each": path_text(keys), "pairs": pairs}, **_system_column(columns)}
    return None


def _of_columns(places: Mapping[Keys, Place], columns: Columns) -> Block | None:
    """Known columns: instruction and output, question and answer, … with earlier exchanges in `history`."""
    known = cols.text_columns(columns)
    found = names.sides(known)
    if found is None:
        return None
    asked, answered = path_text((known[found[0]],)), found[1] and path_text((known[found[1]],))
    specs = cols.find_tools(places, ())
    beside = _system_column(columns) | ({"tools": path_text(specs)} if specs else {})
    joined = [path_text((known[name],)) for name in names.BESIDE if name in known] if found[0] == "instruction" else []
    if not answered and not joined:
        return {"prompt": asked, **beside}
    text: Any = {"join": [asked, *joined], "by": "\n\n"} if joined else asked
    blocks: list[Block] = [{"role": {"as": "user"}, "text": text}]
    if answered:
        blocks.append({"role": {"as": "assistant"}, "text": answered})
    history = places.get(("history",))
    if history and all(isinstance(it, list) and len(it) == 2 for it in history.elements()) and history.rows:
        blocks.insert(0, {"each": "history", "pairs": {"user": "[0]", "assistant": "[1]"}})
    return {"turns": blocks, **beside}


def _of_prompts(places: Mapping[Keys, Place], columns: Columns) -> Block | None:
    """A list of texts: the user turns of a benchmark question."""
    keys = cols.prompt_lists(places)
    if keys is None:
        return None
    several = any(len(found) > 1 for _, found in places[keys].lists)
    return {"prompt": f"{path_text(keys)}[*]", **({"keep": "each_user"} if several else {}), **_system_column(columns)}


def _of_chats(places: Mapping[Keys, Place], columns: Columns) -> Block | None:
    """Whole chats in one text."""
    for keys in columns.values:
        if not columns.is_text(keys) or not (speakers := find_speakers(columns.texts(keys))):
            continue
        block: Block = {"text": path_text(keys), "split": speakers.declaration()}
        words = [word for word in EMPTY_WORDS if any(text.count(f": {word}\n") for text in columns.texts(keys))]
        empty: Block = {"empty": words} if words else {}
        system = cols.find_system(columns, keys)
        if system and system != keys:
            mark = starts_with_mark(columns.texts(system))
            if mark:
                return {"turns": [{"text": path_text(system), "split": {"system": mark, "at": "line"}}, block], **empty}
            return {"turns": block, "system": path_text(system), **empty}
        return {"turns": block, **empty}
    return None
