"""Whole paths as one closure each, with short cuts for what declarations mostly say.

Most paths are a few keys, then perhaps a filter `[?@.key == 'text']`, then perhaps one more key. Each of
these forms is one comprehension here, at little more than the cost of a loop written by hand. All others
go from segment to segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from draftmill.paths.closures import Finder, segment_step, simple_equality, walk
from draftmill.paths.functions import NOTHING
from draftmill.paths.syntax import Filter, Name, Query, Segment


def finder(query: Query) -> Finder:
    """The closure of a path from `$`: maps a document and its root to the list of matched values."""
    keys = _leading_keys(query.segments)
    rest = query.segments[len(keys) :]
    head = _by_keys(keys)
    if not rest:
        return lambda value, _: [] if (found := head(value)) is NOTHING else [found]
    steps = walk(tuple(map(segment_step, rest)))
    if keys:
        tail: Finder = lambda value, root: [] if (found := head(value)) is NOTHING else steps([found], root)  # noqa: E731
    else:
        tail = lambda value, root: steps([value], root)  # noqa: E731
    return _selected(keys, rest, tail) or tail


def _leading_keys(segments: Sequence[Segment]) -> tuple[str, ...]:
    keys = []
    for segment in segments:
        if not isinstance(only := segment.single, Name):
            break
        keys.append(only.name)
    return tuple(keys)


def _by_keys(keys: tuple[str, ...]) -> Callable[[Any], Any]:
    """The value under some keys, or NOTHING."""
    if len(keys) == 1:
        only = keys[0]
        return lambda value: value.get(only, NOTHING) if type(value) is dict else NOTHING

    def run(value: Any) -> Any:
        for key in keys:
            if type(value) is not dict:
                return NOTHING
            value = value.get(key, NOTHING)
        return value

    return run


def _selected(keys: tuple[str, ...], rest: Sequence[Segment], careful: Finder) -> Finder | None:
    """`keys[?@.field == 'text'].name`, or without `.name`: taken for a list of objects that have these keys.

    Whatever else stands there raises, and is left to `careful`.
    """
    only = rest[0].single
    equality = simple_equality(only.test) if isinstance(only, Filter) else None
    name = rest[1].single if len(rest) == 2 else None
    if not equality or len(equality[0]) > 1 or len(rest) > 2 or (len(rest) == 2 and not isinstance(name, Name)):
        return None
    (field,), texts = equality
    if not all(isinstance(text, str) for text in texts):
        return None
    pick = _picker(field, texts, name.name if isinstance(name, Name) else None)
    if len(keys) == 1:
        key = keys[0]

        def one_key(value: Any, root: Any) -> list[Any]:
            try:
                return pick(value[key])
            except (LookupError, TypeError):
                return careful(value, root)

        return one_key

    def run(value: Any, root: Any) -> list[Any]:
        try:
            found = value
            for key in keys:
                found = found[key]
            return pick(found)
        except (LookupError, TypeError):
            return careful(value, root)

    return run


def _picker(field: str, texts: tuple[str, ...], name: str | None) -> Callable[[Any], list[Any]]:
    """The comprehension. A text, a number or null in the place of an object or a list raises TypeError."""
    if len(texts) == 1:
        text = texts[0]
        if name is None:
            return lambda items: [item for item in items if item[field] == text]
        return lambda items: [item[name] for item in items if item[field] == text]
    # A tuple is searched by comparison, so that a list in the field, which has no hash, does no harm.
    if name is None:
        return lambda items: [item for item in items if item[field] in texts]
    return lambda items: [item[name] for item in items if item[field] in texts]
