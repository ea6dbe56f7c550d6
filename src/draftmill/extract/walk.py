"""Where a path stops: one segment at a time, with what stands there and what to write instead."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from typing import Any

from draftmill.console import excerpt
from draftmill.errors import nearest
from draftmill.extract.schema import Schema
from draftmill.paths import Path, Step


@dataclass(frozen=True, slots=True)
class Walk:
    """What was found on the way, and the fix (None: nothing obvious)."""

    found: str
    fix: str | None


def walk(path: Path, values: list[Any], schema: Schema, in_turn: bool = False) -> Walk:
    """Follow `path` from `values` (rows, or turns if `in_turn`) to the segment that selects nothing there."""
    so_far = "@" if in_turn else "$"
    if not values:
        return Walk("there is no row to look at", "check `where`, and the path that leads there")
    for step in path.steps:
        there = [value for value in values if value is not None and value != ""]
        if not there:
            return Walk(f"{so_far} is null or empty in all of {len(values)} places", "declare another path")
        following = step(there)
        if not following:
            return _stopped(path, step, there, so_far, schema)
        values, so_far = following, so_far + step.text
    return Walk(f"{so_far} is there {len(values)} times, always null or empty", "declare another path")


def _stopped(path: Path, step: Step, values: list[Any], so_far: str, schema: Schema) -> Walk:
    texts = [value for value in values if type(value) is str]
    if len(texts) == len(values):
        if all(text.lstrip()[:1] in ("{", "[") for text in texts):
            where = _written(path, step)
            return Walk(f"{so_far} is a text that holds JSON", f"add  decode: [{where or so_far}]")
        return Walk(f"{so_far} is a text: '{excerpt(texts[0], 60)}'", "the path ends one step earlier")
    if step.wanted is not None:
        return _no_value(step, values, so_far, schema)
    if step.name is not None:
        return _no_key(path, step, step.name, values, so_far)
    longest = max((len(value) for value in values if type(value) is list), default=None)
    there = _kinds(values) + ("" if longest is None else f" of at most {longest} elements")
    fix = f"try shorter paths on a file of it:  draftmill path {shlex.quote(path.text)} FILE"
    return Walk(f"{so_far} is {there}; {step.text} selects nothing in it", fix)


def _written(path: Path, step: Step) -> str:
    """The shorthand of the part of `path` before `step`."""
    before = path.steps[: path.steps.index(step)]
    if all(each.name is not None for each in before):
        return ".".join(str(each.name) for each in before)
    return f'"${"".join(each.text for each in before)}"' if before else ""


def _no_key(path: Path, step: Step, name: str, values: list[Any], so_far: str) -> Walk:
    lists = [value for value in values if type(value) is list]
    if len(lists) == len(values):
        before = _written(path, step)
        rest = "".join(each.text for each in path.steps[path.steps.index(step) + 1 :])
        fix = f"write  {before}[*].{name}{rest}" if before and not rest else f"put [*] before .{name}"
        if not before:
            fix = 'a row is a list: write `each: "$"`, or `rows: $` in source if the whole file is one row'
        return Walk(f"{so_far} is a list ({len(lists)} of {len(values)} times), and a list has no keys", fix)
    keys = Counter(key for value in values if type(value) is dict for key, held in value.items() if held is not None)
    if not keys:
        fix = "`each` leads to no turns: point it at them" if so_far == "@" else "the path ends one step earlier"
        return Walk(f"{so_far} is {_kinds(values)}, which has no key '{name}'", fix)
    close = nearest(name, keys)
    listed = ", ".join(f"{excerpt(key, 40)} {count}" for key, count in keys.most_common(20))
    fix = f"did you mean '{close}'?" if close else "one of these keys"
    return Walk(f"{so_far} has no key '{name}' in {len(values)} places; keys there: {listed}", fix)


def _no_value(step: Step, values: list[Any], so_far: str, schema: Schema) -> Walk:
    assert step.wanted is not None
    keys, wanted = step.wanted
    children = [child for value in values for child in _children(value)]
    seen: Counter[Any] = Counter()
    for child in children:
        for key in keys:
            child = child.get(key) if type(child) is dict else None
        if child is not None:
            seen[child if isinstance(child, str | int | float) else type(child).__name__] += 1
    name = ".".join(keys)
    says = " or ".join(repr(value) for value in wanted)
    if not seen:
        inside = Counter(key for child in children if type(child) is dict for key in child)
        close = nearest(name, inside)
        listed = ", ".join(f"{key} {count}" for key, count in inside.most_common(20))
        fix = f"did you mean '{close}'?" if close else "compare a key that is there" if inside else "go one key deeper"
        return Walk(
            f"{so_far} has {len(children)} elements, none with a key '{name}'; keys there: {listed or 'none'}", fix
        )
    listed = ", ".join(f"{excerpt(str(value), 40)} {count}" for value, count in seen.most_common(12))
    found = f"{so_far} has {len(children)} elements, none with {name} = {says}; values there: {listed}"
    return Walk(found, _other_value(str(wanted[0]), [str(value) for value in seen], schema))


def _other_value(wanted: str, seen: list[str], schema: Schema) -> str | None:
    alias = next((value for value in seen if schema.roles.get(value, "") == schema.roles.get(wanted, wanted)), None)
    if alias:
        return f"the role '{alias}' means {wanted} already: write  [role={alias}]  in the path, or turns: {{each: …}}"
    close = nearest(wanted, seen)
    return f"did you mean '{close}'?" if close else "compare with one of these values"


def _children(value: Any) -> list[Any]:
    return value if type(value) is list else list(value.values()) if type(value) is dict else []


def _kinds(values: list[Any]) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return " or ".join(sorted({names.get(type(value), "null") for value in values}))
