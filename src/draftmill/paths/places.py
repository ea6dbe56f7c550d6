"""Where matches stand: (container, key) pairs, for replacing them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from draftmill.paths.closures import containers, predicate, segment_step, walk
from draftmill.paths.syntax import Filter, Index, Name, Query, Segment, Selector, Slice


def replace(query: Query, document: Any, function: Callable[[Any], Any]) -> int:
    """Put `function(value)` in the place of every match of `query` in `document`; the number of matches.

    A match of the whole document (`$`) has no place and is left alone.
    """
    if not query.segments:
        return 0
    *before, last = query.segments
    parents = walk(tuple(map(segment_step, before)))([document], document)
    found = list(_places(last, parents, document))
    for container, key in found:
        container[key] = function(container[key])
    return len(found)


def _places(segment: Segment, parents: list[Any], root: Any) -> Iterator[tuple[Any, Any]]:
    for container in containers(parents) if segment.descendant else parents:
        for selector in segment.selectors:
            yield from ((container, key) for key in _keys(selector, container, root))


def _keys(selector: Selector, container: Any, root: Any) -> Iterable[Any]:
    """The keys or indexes that a selector takes from one value."""
    if type(container) is dict:
        every: Iterable[Any] = container.keys()
    elif type(container) is list:
        every = range(len(container))
    else:
        return ()
    match selector:
        case Name(name):
            return (name,) if type(container) is dict and name in container else ()
        case Index() | Slice() if type(container) is dict:
            return ()
        case Index(index):
            return (index,) if -len(container) <= index < len(container) else ()
        case Slice(start, stop, step):
            return () if step == 0 else range(len(container))[start:stop:step]
        case Filter(test):
            holds = predicate(test)
            return tuple(key for key in every if holds(container[key], root))
        case _:
            return tuple(every)
