"""The path language: RFC 9535 JSONPath, and a shorthand that is pure notation.

    texts = compile("trajectory[role=user].text")
    texts(row)                       # list of the matched values, in the order of RFC 9535
    texts.canonical                  # $['trajectory'][?@['role'] == 'user']['text']
    wanted = compile_filter("@.status == 'done' && length(@.turns) > 1")
    wanted(row)                      # True or False

Documents are plain JSON values (dict, list, str, int, float, bool, None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from draftmill.paths import closures, places
from draftmill.paths.errors import PathError, PatternTimeout
from draftmill.paths.parser import Parser
from draftmill.paths.syntax import (
    And,
    Argument,
    Call,
    Comparison,
    Filter,
    Logical,
    Name,
    Not,
    Or,
    Query,
    Segment,
    Test,
)
from draftmill.paths.whole import finder

__all__ = ["Condition", "Path", "PathError", "PatternTimeout", "Step", "compile", "compile_filter"]


class Step:
    """One segment of a path, for walking it by hand and telling where it stopped.

    Attributes: `text` (the segment's canonical text), `segment` (its syntax tree), `name` (the key, if
    the segment is one name), `wanted` ((keys, values), if it is one filter that says the value at these
    keys equals one of the values).
    """

    __slots__ = ("_run", "name", "segment", "text", "wanted")

    def __init__(self, segment: Segment) -> None:
        self._run = closures.segment_step(segment)
        self.segment, self.text, only = segment, str(segment), segment.single
        self.name = only.name if isinstance(only, Name) else None
        self.wanted = closures.simple_equality(only.test) if isinstance(only, Filter) else None

    def __call__(self, values: list[Any], root: Any = None) -> list[Any]:
        """What the segment selects from all `values`; `root` is the document that `$` means in a filter."""
        return self._run(values, root)


class Path:
    """A compiled path: a callable from a JSON value to the list of matched values.

    Attributes: `text` (as written), `canonical` (RFC 9535), `query` (the syntax tree), `steps` (one
    `Step` per segment), `name` (the key, if the path is one plain key) and `columns` (the keys of the
    document that it reads; None: it may read all). Two paths are equal if their canonical texts are.
    Can be pickled.
    """

    def __init__(self, text: str) -> None:
        self.text, self.query = text, Parser(text).path()
        self.canonical = str(self.query)
        self.steps = tuple(map(Step, self.query.segments))
        self._run = finder(self.query)
        self.name = self.steps[0].name if len(self.steps) == 1 else None
        self.columns = _columns(_queries_of_path(self.query))

    def __call__(self, value: Any, root: Any = None) -> list[Any]:
        """The matched values in RFC order; `root` is what `$` means in its filters, by default `value`."""
        return self._run(value, value if root is None else root)

    def replace(self, document: Any, function: Callable[[Any], Any]) -> int:
        """Put `function(value)` in the place of every match, in place; the number of matches.

        A match of the whole document has no place and is left alone.
        """
        return places.replace(self.query, document, function)

    def __repr__(self) -> str:
        return f"Path({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __reduce__(self) -> tuple[Callable[[str], Path], tuple[str]]:
        return compile, (self.text,)


class Condition:
    """A compiled filter body: a callable from a JSON value (`@`) to a bool.

    Attributes: `text`, `canonical`, `test` (the syntax tree), `columns` (as for Path).
    """

    def __init__(self, text: str) -> None:
        self.text, self.test = text, Parser(text).filter_body()
        self.canonical = str(self.test)
        self._run = closures.predicate(self.test)
        self.columns = _columns(_queries_of_test(self.test))

    def __call__(self, value: Any, root: Any = None) -> bool:
        """Whether the test holds for `value`; `root` is what `$` means, by default `value`."""
        return self._run(value, value if root is None else root)

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def __reduce__(self) -> tuple[Callable[[str], Condition], tuple[str]]:
        return compile_filter, (self.text,)


@lru_cache(maxsize=1024)
def compile(path: str) -> Path:
    """Compile a path, RFC 9535 or shorthand. Raises PathError with the position."""
    return Path(path)


@lru_cache(maxsize=1024)
def compile_filter(body: str) -> Condition:
    """Compile what may stand between `[?` and `]`. Raises PathError with the position."""
    return Condition(body)


def _columns(queries: Iterator[Query]) -> frozenset[str] | None:
    """The keys that some queries over one document begin with; None if one of them may read any key."""
    columns: set[str] = set()
    for query in queries:
        first = query.segments[0] if query.segments else None
        if first is None or first.descendant or not all(isinstance(item, Name) for item in first.selectors):
            return None
        columns |= {item.name for item in first.selectors if isinstance(item, Name)}
    return frozenset(columns)


def _queries_of_path(query: Query) -> Iterator[Query]:
    """The path itself, and the paths from `$` in its filters."""
    yield query
    for segment in query.segments:
        for selector in segment.selectors:
            if isinstance(selector, Filter):
                yield from (inner for inner in _queries_of_test(selector.test) if not inner.relative)


def _queries_of_test(test: Logical | Argument) -> Iterator[Query]:
    """The paths that a test over one value reads, and the paths from `$` within these."""
    match test:
        case Or(parts) | And(parts) | Call(_, parts):
            for part in parts:
                yield from _queries_of_test(part)
        case Not(part) | Test(part):
            yield from _queries_of_test(part)
        case Comparison(left, _, right):
            yield from _queries_of_test(left)
            yield from _queries_of_test(right)
        case Query():
            yield from _queries_of_path(test)
