"""Rows without a conversation: known columns, pairs of both sides, lists of texts, whole chats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import mean
from typing import Any

from draftmill.inspect import columns as cols
from draftmill.inspect import names
from draftmill.inspect.columns import Columns
from draftmill.inspect.conversation import MIN_CHARACTERS, Block, text_keys
from draftmill.inspect.places import Keys, Place, path_text
from draftmill.inspect.speakers import find_speakers, starts_with_mark

Notes = list[str]
EMPTY_WORDS = ("None", "null", "N/A", "NaN")
"""Texts that stand for nothing where somebody printed a missing value."""
EMPTY_SHARE = 0.005
_FLAG = re.compile(r"(?:is|from)_?(?:(?P<user>user|human|customer)|bot|assistant|ai|model)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:question|prompt|query)_?id")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def without_conversation(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """The schema, or None if nothing is known; what a person has to check is added to `notes`."""
    attempts = (
        _of_named_pairs,
        _of_columns,
        _of_prompts,
        _of_pairs,
        _of_chats,
        _of_inner,
        _of_lists,
        _of_flags,
        _by_name,
    )
    for attempt in attempts:
        schema = attempt(places, columns, notes)
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


# -- both sides in one element --------------------------------------------------------------------


def _of_named_pairs(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """Pairs in a list that is called a conversation: they come before known columns of the row."""
    named = {keys: place for keys, place in places.items() if keys and keys[-1] in names.CONVERSATIONS}
    return _of_pairs(named, columns, notes)


def _of_pairs(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """Elements that hold both sides: {human, assistant}."""
    for keys, place in sorted(places.items(), key=lambda item: (-len(item[1].rows), len(item[0]))):
        elements = list(place.elements())
        if not elements or not all(isinstance(element, dict) for element in elements):
            continue
        known = names.plain_names(
            dict.fromkeys(key for element in elements for key, v in element.items() if isinstance(v, str))
        )
        found = names.sides(known)
        named = bool(keys) and keys[-1] in names.CONVERSATIONS
        if place.decode and not named:
            continue  # test cases of a problem, as JSON text
        if found and found[1] and len(place.rows) > cols.TOOLS_SHARE * len(columns.rows):
            system = {"system": path_text((known["system"],))} if "system" in known else {}
            pairs = {**system, "user": path_text((known[found[0]],)), "assistant": path_text((known[found[1]],))}
            decode = {"decode": [path_text(it) for it in place.decode]} if place.decode else {}
            return {"turns": {"each": path_text(keys), "pairs": pairs}, **_system_column(columns), **decode}
    return None


# -- columns --------------------------------------------------------------------------------------


def _of_columns(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """Known columns: instruction and output, question and answer, … with earlier exchanges in `history`."""
    known = {name: key for name, key in cols.text_columns(columns).items() if not _is_constant(name, key, columns)}
    found = names.sides(known)
    if found is None:
        return None
    asked, answered = known[found[0]], found[1] and known[found[1]]
    if found[0] in ("user", "human") and not answered:
        return None  # who wrote it: a message of a channel
    encoded = places.get((asked,))
    if encoded and encoded.decode and all(isinstance(it, str) for it in encoded.elements()):
        return None  # a list of prompts, as JSON text
    answered = answered or _answer_by_name(columns, asked, notes)
    specs = cols.find_tools(places, ())
    beside = (
        _system_column(columns) | _empty(columns.texts((asked,))) | ({"tools": cols.spec_shape(specs)} if specs else {})
    )
    joined = [path_text((known[name],)) for name in names.BESIDE.get(found[0], ()) if name in known]
    speakers = find_speakers(columns.texts((asked,)))
    answer = _answer(places, columns, known, answered)
    pairs = _are_pairs(places.get(("history",)))
    if not (answer or joined or speakers or pairs):
        return {"prompt": path_text((asked,)), **beside}
    if speakers:
        notes += speakers.notes
        blocks: list[Block] = [{"text": path_text((asked,)), "split": speakers.declaration()}]
    else:
        text: Any = {"join": [path_text((asked,)), *joined], "by": "\n\n"} if joined else path_text((asked,))
        blocks = [{"role": {"as": "user"}, "text": text}]
    blocks += [answer] if answer else []
    if pairs:
        blocks.insert(0, {"each": "history", "pairs": {"user": "[0]", "assistant": "[1]"}})
    return {"turns": blocks, **beside}


def _is_constant(name: str, key: str, columns: Columns) -> bool:
    """Whether a column that is called like a question says the same in all rows: the name of a template, say."""
    texts = columns.texts((key,))
    return name in names.USER and name not in names.BESIDE and len(texts) > 1 and cols.shared(texts) == 1


def _are_pairs(history: Place | None) -> bool:
    """Whether a list holds earlier exchanges, [["question", "answer"], …]."""
    return (
        history is not None
        and bool(history.rows)
        and all(isinstance(it, list) and len(it) == 2 for it in history.elements())
    )


def _answer_by_name(columns: Columns, asked: str, notes: Notes) -> str | None:
    """The only column whose name holds the word for an answer (`generated_solution`), but not that of a reference."""
    words = {str(keys[0]): _words(str(keys[0])) for keys in columns.values if len(keys) == 1 and columns.is_text(keys)}
    found = [
        key for key, held in words.items() if key != asked and held & {*names.ASSISTANT} and not held & names.REFERENCE
    ]
    if len(found) != 1 or not _differ(columns, (found[0],)):
        return None
    notes.append(f"`{found[0]}` is taken for the answer because of its name alone")
    return found[0]


def _answer(
    places: Mapping[Keys, Place], columns: Columns, known: Mapping[str, str], answered: str | None
) -> Block | None:
    """The block of the answer: calls, or a text with the thoughts that stand in a column beside it."""
    calls = cols.find_calls(places)
    if calls and answered in (None, calls):
        return {"role": {"as": "function_call"}, "text": path_text((calls,))}
    if answered is None:
        return None
    thoughts = cols.find_reasoning(columns, known)
    reasoning = {"reasoning": path_text((thoughts,))} if thoughts else {}
    return {"role": {"as": "assistant"}, "text": path_text((answered,)), **reasoning}


def _of_inner(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """Known columns one or two objects down: {data: {prompt, response}}; or the question's text: {prompt: {text}}."""
    for keys in [keys for keys, values in columns.values.items() if any(isinstance(value, dict) for value in values)]:
        known = cols.text_columns(columns, keys)
        found = names.sides(known)
        if found and found[1]:
            sides = zip(("user", "assistant"), found, strict=True)
            return {
                "turns": [{"role": {"as": role}, "text": path_text((*keys, known[str(name)]))} for role, name in sides]
            }
        text = next((known[name] for name in ("text", "content", "value", "full_text") if name in known), None)
        if text and str(keys[-1]).lower() in names.USER:
            return {"prompt": path_text((*keys, text))}
        if found and found[0] in ("prompt", "question"):  # a request that was logged, say
            return {"prompt": path_text((*keys, known[found[0]]))}
    return None


def _by_name(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """A column whose name holds the word for a question (`question_content`), that with most text; `text` beside an id
    of questions."""
    words = {keys: _words(str(keys[0])) for keys in columns.values if len(keys) == 1}
    found = [keys for keys in words if words[keys] & {*names.USER} and columns.is_text(keys) and _differ(columns, keys)]
    if not found:
        numbered = any(_NUMBERED.fullmatch(str(keys[-1])) for keys in words)
        found = [keys for keys in words if numbered and keys == ("text",) and columns.is_text(keys)]
    if not found:
        return None
    best = max(found, key=lambda keys: sum(map(len, columns.texts(keys))))
    notes.append(f"`{best[0]}` is taken for the prompt because of its name alone: look at what it holds")
    return {"prompt": path_text(best), **_system_column(columns)}


def _words(key: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(key)}


def _differ(columns: Columns, keys: Keys) -> bool:
    texts = columns.texts(keys)
    return len(set(texts)) > cols.THOUGHTS_SHARE * len(texts) and mean(map(len, texts)) > MIN_CHARACTERS


# -- lists of texts, and speakers by other signs --------------------------------------------------


def _of_prompts(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """A list of texts: the user turns of a benchmark question."""
    found = cols.prompt_lists(places)
    if found is None:
        return None
    keys, path = found
    several = any(len(prompts) > 1 for _, prompts in places[keys].lists)
    keep = {"keep": "each_user"} if several else {}
    decode = {"decode": [path_text(it) for it in places[keys].decode]} if places[keys].decode else {}
    return {"prompt": path, **keep, **_system_column(columns), **decode}


def _of_lists(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """A list of texts, or of pairs of them, that is called a conversation: one speaker after the other."""
    for keys, place in places.items():
        elements = list(place.elements())
        if not keys or keys[-1] not in names.SPOKEN_LISTS:
            continue
        if elements and all(isinstance(it, list) and len(it) == 2 and all(map(_said, it)) for it in elements):
            return {
                "turns": {"each": path_text(keys), "pairs": {"user": "[0]", "assistant": "[1]"}},
                **_system_column(columns),
            }
        if not all(isinstance(it, str) for it in elements):
            continue
        if elements and len(elements) >= 2 * len(place.rows) and mean(map(len, elements)) > MIN_CHARACTERS:
            if marked := find_speakers("\n".join(said) for _, said in place.lists):
                notes += marked.notes
                return {"turns": {"each": path_text(keys), "split": marked.declaration()}, **_system_column(columns)}
            notes.append("nothing says who speaks: the first text is taken for the user's, the next for the answer, …")
            return {
                "turns": {"each": path_text(keys), "role": {"as": ["user", "assistant"]}},
                **_system_column(columns),
            }
    return None


def _said(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _of_flags(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """Turns whose speaker is told by true and false: {is_human: true}."""
    for keys, place in places.items():
        turns = [element for element in place.elements() if isinstance(element, dict)]
        for key in turns[0] if turns else ():
            sign = _FLAG.fullmatch(key)
            if sign and all(isinstance(turn.get(key), bool) for turn in turns) and (texts := text_keys(turns, key)):
                mine, other = ("user", "assistant") if sign["user"] else ("assistant", "user")
                role = {f"@.{path_text((key,))} == true": mine, "else": other}
                text = {} if texts[0] == "content" else {"text": path_text((texts[0],))}
                return {"turns": {"each": path_text(keys), "role": role, **text}, **_system_column(columns)}
    return None


def _of_chats(places: Mapping[Keys, Place], columns: Columns, notes: Notes) -> Block | None:
    """Whole chats in one text."""
    for keys in columns.values:
        if not columns.is_text(keys) or not (speakers := find_speakers(columns.texts(keys))):
            continue
        notes += speakers.notes
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
