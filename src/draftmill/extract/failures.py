"""When a dataset must not go on, and why: each failure says what was found and what to write instead."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from draftmill.console import excerpt
from draftmill.errors import DataError, nearest
from draftmill.extract.coverage import Probe, probes
from draftmill.extract.declaration import Declaration
from draftmill.extract.literals import Unwritable, loads
from draftmill.extract.outcome import Rejected, Work
from draftmill.extract.readers import Chunk, ChunkReader, Reject, chunks
from draftmill.extract.rows import conversation_of, decoder, selector
from draftmill.extract.schema import TARGET_ROLES, Block
from draftmill.extract.turns import elements_of, label_of
from draftmill.extract.walk import Walk, walk
from draftmill.paths import compile

if TYPE_CHECKING:
    from draftmill.extract.run import Outcome

SAMPLE_ROWS = 200
MIN_ROWS_FOR_SAME = 20
NEVER_MATCHED = "matched nothing"
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w .-]*(?<! )")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})

REASONS = {
    "prompt_is_a_list": "the prompt path gives a list: write `[*]` after it to take each of its elements",
    "prompt_is_no_text": "the prompt path gives something that is not text: go one key deeper",
    "turn_is_a_list": "a turn is itself a list: write one more `[*]` in `each`, or use `pairs`",
    "turn_is_no_object": "a turn is neither an object nor text: `each` goes too deep",
    "turn_is_a_string": "a turn is a text: if it holds JSON, add its path to `decode`; else give `role: {as: user}`",
    "turn_without_role": "a turn with text has no label: check `role`",
    "no_user_turn": "nothing left says that it is a user turn: check `role`, `text` and `roles`",
    "no_assistant_turn": "there is no answer to keep: use another `keep`, or `answer: regenerate`",
    "too_few_user_turns": "the conversation has fewer user turns than `keep: {users: n}` asks for",
    "text_before_speaker": "text stands before the first marker: add its marker to `split`, or `prefix: drop`",
    "other_part": "a content has parts that are not text: `parts: drop` or `parts: placeholder`; or, if it is an "
    "object with the text inside, `text: [content.KEY, content]`",
    "malformed_part": "a content has parts that are turns or numbers: `text` points at the wrong key",
    "text_is_a_boolean": "the text is true or false: `text` points at the wrong key",
    "cannot_decode": "a text under `decode` is neither JSON nor a Python literal, or a number in it is too large",
    "bad_tools": "`tools` gives something that is no tool spec: name its parts, {each: …, name: …, parameters: …}",
    "bad_tool_call": "`tool_calls` gives something that is no call: name its parts, {each: …, name: …, arguments: …}",
    "bad_flag": "the flag of `mask` is neither true, false nor a number",
    "row_is_a_list": 'a row is a list: `each: "$"` takes its elements as turns; `rows: $` makes the whole file one row',
    "row_is_no_object": "a row is neither an object nor a list: `source.rows` goes too deep",
    "cannot_encode": "a text holds half a character (a lone surrogate), or an object is nested too deep to be written",
    "orphan_tool": "a tool result has no call before it: `orphan_tool: keep` keeps such rows",
}
"""What each reason of a reject means, and what to do."""
UNREADABLE = {
    "nested_too_deep": "objects or lists stand within one another a thousand deep: no conversation does",
    "number_too_large": "a number is too large for a double: write it as text",
    "line_too_long": "a line has no end: the file is no JSON Lines",
    "invalid_utf8": "the text is not UTF-8; if it is Latin-1, `iconv -f LATIN1 -t UTF-8 FILE > NEW` converts it",
    "csv_cells": "a row has another number of cells than the header: a text with commas or line ends needs quotes",
}
"""The same for what the readers refuse; their other reasons mean a damaged file."""
DAMAGED = "the file is damaged or of another kind"


def check(outcome: Outcome, declaration: Declaration) -> None:
    """Raise DataError if the dataset must not be used as it is declared."""
    if outcome.rejects["unknown_role"]:
        raise _unknown_roles(declaration)
    passed = outcome.rows - outcome.filtered.total() - _unreadable(outcome)
    _check_where(outcome, declaration)
    if passed:
        for key in outcome.unseen():
            raise _unmatched(declaration, key)
        if (tools := declaration.schema.tools) and tools.from_system and not outcome.notes["tools_in_system"]:
            raise _no_specs(declaration, *tools.between)
    _check_yield(outcome, declaration)
    _check_same(outcome, declaration)
    if outcome.kept < declaration.schema.expect.min_rows:
        if not outcome.rows and declaration.source.rows:
            raise _rows_matched_nothing(declaration, declaration.source.rows)
        files = ", ".join(dict.fromkeys(part.chunk.file for part in outcome.parts))
        dropped = _counts(outcome.filtered + outcome.rejects) or "none dropped"
        raise _failed(
            declaration,
            "expect.min_rows",
            f"{declaration.name}: {outcome.kept} rows kept, at least {declaration.schema.expect.min_rows} expected",
            f"{outcome.rows} rows read; {dropped}" if outcome.rows else f"no row in {excerpt(files, 200)}",
            f"check `{outcome.filtered.most_common(1)[0][0]}`" if outcome.filtered else "check `source`",
        )


def _failed(declaration: Declaration, key: str, message: str, found: str, fix: str | None) -> DataError:
    return DataError(message, file=declaration.file, key=f"schema.{key}", found=found, fix=fix)


def _unreadable(outcome: Outcome) -> int:
    """Rows that were rejected before any path was looked at."""
    before = [reason for reason in outcome.rejects if reason not in REASONS or reason == "cannot_decode"]
    return sum(outcome.rejects[reason] for reason in before if reason != "unknown_role")


def _counts(counts: Counter[str], limit: int = 12) -> str:
    listed = [f"{excerpt(name, 60)} {count}" for name, count in counts.most_common(limit)]
    return ", ".join(listed + ["…"] * (len(counts) > limit))


# -- second looks ---------------------------------------------------------------------------------


def sample_rows(declaration: Declaration, limit: int | None = SAMPLE_ROWS, every: bool = False) -> list[Any]:
    """The first rows as they are worked on (decoded, with all columns); `every`: those that `where` drops too."""
    decode, select = decoder(declaration.schema), selector(declaration.schema, lambda key: {})

    def read(chunk: Chunk) -> Iterator[tuple[Any, Work]]:
        work = Work(arrow=chunk.arrow)
        return ((row, work) for _, row in ChunkReader(chunk))

    def wanted() -> Iterator[Any]:
        everything = (row for chunk in chunks(declaration.source) for row in read(chunk))
        for row, work in islice(everything, declaration.limit):
            if isinstance(row, Reject):
                continue
            with suppress(Rejected):
                decode(row, work)
            if every or select(row) is None:
                yield row

    return list(islice(wanted(), limit))


def _unknown_roles(declaration: Declaration) -> DataError:
    schema, labels, unknown = declaration.schema, Counter[str](), Counter[str]()
    key = "roles"
    for block in schema.blocks:
        find = label_of(block.role, schema.roles)
        elements = elements_of(block)
        for row in sample_rows(declaration, limit=None):
            for element in elements(row):
                label, known = find(element)
                labels[label] += 1
                if known:
                    continue
                if block.role.path and type(held := block.role.path.one(element)) in (list, dict):
                    return _label_is_no_text(declaration, block, held)
                unknown[label] += 1
                key = f"{block.key}.role" if block.role.rules else "roles"
    guesses = ", ".join(f"{_as_key(label)}: {_guess(label, schema.roles)}" for label, _ in unknown.most_common(8))
    fix = f"add  roles: {{{guesses}}}  (each one of {', '.join(TARGET_ROLES)})"
    if key != "roles":
        fix = "add a filter for these turns, or  else: drop"
    names = ", ".join(f"'{excerpt(name, 40)}'" for name, _ in unknown.most_common(5))
    message = f"{declaration.name}: no role is declared for the label{'s' * (len(unknown) > 1)} {names}"
    return _failed(declaration, key, message, f"labels seen: {_counts(labels, 30)}", fix)


def _label_is_no_text(declaration: Declaration, block: Block, held: Any) -> DataError:
    """The error for `role` that leads to a list or an object, with the way to a text in it."""
    assert block.role.path is not None
    path, schema = block.role.path.options[0].text, declaration.schema
    kind = "a list" if type(held) is list else "an object"
    inside = dict(enumerate(held)) if type(held) is list else held
    labels = [key for key, value in inside.items() if type(value) is str]
    known = [key for key in labels if inside[key] in schema.roles]
    fix = "point it at the text that names the speaker"
    if found := known or labels:
        step = f"[{found[0]}]" if type(held) is list else f".{found[0]}" if str(found[0]).isidentifier() else ""
        fix = f"write  role: {path}{step}" if step else fix
    message = f"{declaration.name}: {path} gives {kind}, where the label of a speaker is text"
    return _failed(declaration, f"{block.key}.role", message, f"it holds: {excerpt(str(held), 100)}", fix)


def _as_key(label: str) -> str:
    """A label as a key of a YAML map in braces: quoted where it would be read as something else."""
    return (
        label
        if _PLAIN_KEY.fullmatch(label) and label.lower() not in _YAML_WORDS
        else json.dumps(label, ensure_ascii=False)
    )


def _guess(label: str, known: Mapping[str, str]) -> str:
    """The role of the known label that is nearest to an unknown one; `question` is 0.63 like `function`, and none."""
    return known.get(nearest(label.lower(), known, 0.75) or "", "…")


def _check_where(outcome: Outcome, declaration: Declaration) -> None:
    where = declaration.schema.where
    if where is None or not outcome.rows:
        return
    if outcome.filtered["where"] + _unreadable(outcome) < outcome.rows:
        return  # a row that passed has every value that is asked for
    for path, value in where.values:
        if value is None:
            continue
        seen: Counter[str] = Counter()
        fits = False
        for row in sample_rows(declaration, None, every=True):
            for match in path(row):
                seen[repr(match)] += 1
                fits = fits or _same_type(match, value)
        if not fits:
            raise _where_type(declaration, path.text, value, seen)
    if outcome.filtered["where"]:
        found = "; ".join(_values_of_where(declaration)) or "no row has what it asks for"
        message = f"{declaration.name}: `where` drops every one of {outcome.rows} rows"
        fix = "compare with a value that is there"
        if (join := declaration.schema.join) and join.name in (where.columns or ()):
            fix = f"`where` comes before `join`, when there is no '{join.name}' yet: choose partners in  join.rows"
        raise _failed(declaration, "where", message, found, fix)


def _same_type(match: Any, value: Any) -> bool:
    numbers = (int, float)
    return type(match) is type(value) or (type(match) in numbers and type(value) in numbers)


def _where_type(declaration: Declaration, path: str, value: Any, seen: Counter[str]) -> DataError:
    kind = {bool: "true or false", str: "text"}.get(type(value), "a number")
    message = f"{declaration.name}: `{path}` is never {kind}, so it cannot be {value!r}"
    texts = any(text.startswith(("'", '"')) for text in seen)
    fix = "compare with one of these values" if seen else "compare with a key that is there"
    if isinstance(value, str):
        fix = "write it without quotes" if seen else fix
    elif texts:
        plain = "in YAML a plain yes, no, on or off is true or false"
        fix = f"quote it: {plain}" if isinstance(value, bool) else "quote the value"
    return _failed(declaration, f"where.{path}", message, f"values there: {_counts(seen) or 'none'}", fix)


def _values_of_where(declaration: Declaration) -> list[str]:
    """What stands at the keys that `where` looks at, in the first rows."""
    where = declaration.schema.where
    assert where is not None
    rows = [row for row in sample_rows(declaration, every=True) if type(row) is dict]
    found = []
    for key in sorted(where.columns or ()):
        values = Counter(repr(row[key]) for row in rows if row.get(key) is not None)
        found.append(f"{key}: {_counts(values) or 'not there'}")
    return found


def _unmatched(declaration: Declaration, key: str) -> DataError:
    probe = next(probe for probe in probes(declaration.schema) if probe.key == key)
    rows = sample_rows(declaration)
    walked = explain(probe, rows, declaration)
    if (
        probe.block is None
        and not probe.in_spec
        and (instead := _rows_instead(declaration, probe.paths.options[0].name, rows))
    ):
        walked = Walk(walked.found, f"write  rows: {instead}  in source: the elements there have the key")
    path = " or ".join(path.text for path in probe.paths.options)
    message = f"{declaration.name}: {path} {NEVER_MATCHED} in {len(rows)} rows"
    if key.startswith("mask"):
        return DataError(message, file=declaration.file, key=key, found=walked.found, fix=walked.fix)
    return _failed(declaration, key, message, walked.found, walked.fix)


def _rows_matched_nothing(declaration: Declaration, rows: str) -> DataError:
    path, whole = compile("$[*]" if rows == "*" else rows), replace(declaration.source, rows="$")
    documents = [value for chunk in chunks(whole) for _, value in ChunkReader(chunk)]
    walked = walk(path, documents, declaration.schema)
    message = f"{declaration.name}: {rows} {NEVER_MATCHED}, so there is no row"
    return DataError(message, file=declaration.file, key="source.rows", found=walked.found, fix=walked.fix)


def _rows_instead(declaration: Declaration, key: str | None, rows: list[Any]) -> str | None:
    """What `source.rows` should say, if not the rows have the key, but elements of them."""

    def has(held: Any) -> bool:
        return type(held) is dict and key in held

    said = declaration.source.rows
    each = "$[*]" if said in (None, "*") else said
    if rows and all(type(row) is list and any(map(has, row)) for row in rows):
        return f'"{each}[*]"'
    if len(rows) != 1 or type(rows[0]) is not dict or said not in (None, "$"):
        return None
    # A file of lines is the list of its lines to `rows`.
    whole = "$" if said or chunks(declaration.source)[0].kind == "json" else "$[*]"
    if all(map(has, rows[0].values())):
        return '"*"' if whole == "$" else f'"{whole}[*]"'
    for name, held in rows[0].items():
        inside = held if type(held) is list else held.values() if type(held) is dict else ()
        if any(map(has, inside)):
            step = f".{name}" if name.isidentifier() else f"['{name}']"
            return json.dumps(f"{whole}{step}[*]".removeprefix("$."), ensure_ascii=False)
    return None


def _no_specs(declaration: Declaration, opening: str, closing: str) -> DataError:
    """The error for `tools: {from: system}` where no system text holds a spec."""
    rows, converse = sample_rows(declaration), conversation_of(declaration.schema)
    texts = []
    for row in rows:
        with suppress(Rejected, Unwritable):
            texts += [turn["content"] for turn in converse(row, Work())[0] if turn["role"] == "system"]
    held = sum(opening in text for text in texts)
    found = f"{len(texts)} system turns in {len(rows)} rows, {held} with '{opening}'"
    found += f"; the first says: {excerpt(texts[0], 100)}" if texts else ""
    ends = f"'{opening}' and '{closing}'" if closing else f"'{opening}' and the end"
    message = f"{declaration.name}: no system text holds tool specs between {ends}"
    fix = "name what stands around them:  between: [before, after]" if texts else "say where the text is: `system`"
    return _failed(declaration, "tools", message, found, fix)


def explain(probe: Probe, rows: list[Any], declaration: Declaration) -> Walk:
    """The walk along the first alternative of a declared path, over the rows' elements it applies to."""
    values = [element for row in rows for element in probe.elements(row)]
    if not values and probe.block and probe.block.each:
        return walk(probe.block.each.options[0], rows, declaration.schema)
    return walk(probe.paths.options[0], values, declaration.schema, in_turn=probe.in_spec or _inside(probe.block))


def _inside(block: Block | None) -> bool:
    return block is not None and block.each is not None


def _check_yield(outcome: Outcome, declaration: Declaration) -> None:
    expected = declaration.schema.expect.yield_
    if outcome.yield_ >= expected:
        return
    reason, _ = outcome.rejects.most_common(1)[0]
    message = (
        f"{declaration.name}: yield {outcome.yield_:.3f} is below {expected:g}: "
        f"{outcome.rejects.total()} of {outcome.rows - outcome.filtered.total()} rows rejected"
    )
    advice = _decode_advice(declaration) if reason == "turn_is_a_string" else None
    advice = advice or (REASONS | UNREADABLE).get(reason, DAMAGED)
    fix = (
        f"{advice}; or, if these rows may go,  expect: {{yield: {_floor(outcome.yield_)}}}" if outcome.kept else advice
    )
    raise _failed(declaration, "expect.yield", message, _counts(outcome.rejects), fix)


def _decode_advice(declaration: Declaration) -> str | None:
    """The path to decode, if the turns of a block are texts that hold JSON."""
    rows = sample_rows(declaration)
    for block in declaration.schema.blocks:
        texts = [text for row in rows for text in elements_of(block)(row) if type(text) is str]
        if block.each and texts and all(text.lstrip()[:1] in ("{", "[") for text in texts):
            return f"the turns are texts that hold JSON: add  decode: [{block.each.options[0].text}]"
    return None


def _floor(share: float) -> float:
    return int(share * 100) / 100


def _check_same(outcome: Outcome, declaration: Declaration) -> None:
    schema = declaration.schema
    fit = outcome.kept + outcome.duplicates
    if schema.dedup is not None or fit < MIN_ROWS_FOR_SAME or outcome.max_same <= schema.expect.max_same:
        return
    run, row = outcome.reduced.example
    conversation = loads(outcome.reduced.runs[run].row(row)["conversation"])
    text = next((excerpt(turn["content"], 100) for turn in conversation if turn["role"] == "user"), "")
    key = "prompt" if schema.is_prompt else "turns"
    message = (
        f"{declaration.name}: {outcome.reduced.most_frequent} of {fit} rows ({outcome.max_same:.0%}) have the same "
        f"user turns; `expect.max_same` allows {schema.expect.max_same:.0%}"
    )
    fix = (
        "the path probably takes the system text: point it at the user's own text; if the rows do share it, "
        "say what tells them apart:  dedup: [path, …]"
    )
    raise _failed(declaration, key, message, f"they all say: {text}", fix)
