"""Rows without a conversation: known columns, pairs of both sides, lists of prompts, whole chats in one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftmill.inspect import columns as cols
from draftmill.inspect import names
from draftmill.inspect.columns import Columns
from draftmill.inspect.places import Keys, Place, path_text
from draftmill.inspect.speakers import find_speakers, starts_with_mark

Block = dict[str, Any]
EMPTY_WORDS = ("None", "null", "N/A", "NaN")
"""Texts that stand for nothing where somebody printed a missing value."""
EMPTY_SHARE = 0.005


def without_conversation(places: Mapping[Keys, Place], columns: Columns) -> Block | None:
    """The schema, or None if nothing is known."""
    for attempt in (_of_pairs, _of_columns, _of_prompts, _of_chats):
        schema = attempt(places, columns)
        if schema is not None:
            return schema
    return None


def tools_beside(place: Place | None, systems: list[str]) -> Block:
    """`tools` from where the specs stand, once if they stand in the system text too."""
    marks = cols.tool_marks(systems) if systems else None
    if place is None:
        return {"tools": {"from": "system", "between": list(marks), "twice": "strip"}} if marks else {}
    shape = cols.spec_shape(place)
    if marks == ("<tools>", "</tools>"):
        return {"tools": {**(shape if isinstance(shape, dict) else {"path": shape}), "twice": "strip"}}
    return {"tools": shape}


def _empty(texts: list[str]) -> Block:
    words = empty_words(texts)
    return {"empty": words} if words else {}


def empty_words(texts: list[str]) -> list[str]:
    """Words among the texts that mean nothing, if they are more than a slip."""
    stripped = [text.strip() for text in texts]
    return [word for word in EMPTY_WORDS if stripped.count(word) > EMPTY_SHARE * len(stripped)]


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
        if found and found[1] and len(place.rows) > cols.TOOLS_SHARE * len(columns.rows):
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
    beside = (
        _system_column(columns)
        | _empty(columns.texts((known[found[0]],)))
        | ({"tools": cols.spec_shape(specs)} if specs else {})
    )
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
        if system is None or system == keys:
            return {"turns": block, **empty}
        mark = starts_with_mark(columns.texts(system))
        rest = tools_beside(None, [text.removeprefix(mark or "") for text in columns.texts(system)]) | empty
        if mark:
            return {"turns": [{"text": path_text(system), "split": {"system": mark, "at": "line"}}, block], **rest}
        return {"turns": block, "system": path_text(system), **rest}
    return None
