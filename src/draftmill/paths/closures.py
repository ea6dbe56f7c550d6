"""Syntax trees turned into Python closures, with short cuts for what declarations mostly say.

A `Step` maps a list of values to the list of values one segment selects from them, in the order of
RFC 9535. A test maps a value and the document (`$`) to a bool. Values are plain JSON values: dict,
list, str, int, float, bool, None; subclasses are not looked into.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from draftmill.paths.functions import FUNCTIONS, NOTHING, Kind
from draftmill.paths.syntax import (
    And,
    Argument,
    Call,
    Comparison,
    Filter,
    Index,
    Literal,
    Logical,
    Name,
    Not,
    Operand,
    Or,
    Query,
    Segment,
    Selector,
    Slice,
    Test,
)

Step = Callable[[list[Any], Any], list[Any]]
Finder = Callable[[Any, Any], list[Any]]
Predicate = Callable[[Any, Any], bool]
Getter = Callable[[Any, Any], Any]


def walk(steps: tuple[Step, ...]) -> Step:
    """All steps, one after the other; without steps, the values themselves."""

    def run(nodes: list[Any], root: Any) -> list[Any]:
        for step in steps:
            nodes = step(nodes, root)
        return nodes

    return steps[0] if len(steps) == 1 else run


def segment_step(segment: Segment) -> Step:
    """The step of one segment."""
    steps = tuple(map(selector_step, segment.selectors))
    child = steps[0] if len(steps) == 1 else _several(steps)
    return (lambda nodes, root: child(containers(nodes), root)) if segment.descendant else child


def selector_step(selector: Selector) -> Step:
    """The step of one selector."""
    match selector:
        case Name(name):
            return lambda nodes, _: [node[name] for node in nodes if type(node) is dict and name in node]
        case Index(index):
            lowest = index + 1 if index >= 0 else -index
            return lambda nodes, _: [node[index] for node in nodes if type(node) is list and len(node) >= lowest]
        case Slice(_, _, 0):
            return lambda nodes, _: []
        case Slice(start, stop, step):
            part = slice(start, stop, step)
            return lambda nodes, _: [item for node in nodes if type(node) is list for item in node[part]]
        case Filter(test):
            return _filter(test)
        case _:
            return lambda nodes, _: [item for node in nodes for item in _children(node)]


def _children(node: Any) -> Iterable[Any]:
    return node if type(node) is list else node.values() if type(node) is dict else ()


def _several(steps: tuple[Step, ...]) -> Step:
    def run(nodes: list[Any], root: Any) -> list[Any]:
        return [item for node in nodes for step in steps for item in step([node], root)]

    return run


def containers(nodes: list[Any]) -> list[Any]:
    """The arrays and objects among `nodes` and below them, parents first, in document order."""
    found, stack = [], nodes[::-1]
    while stack:
        node = stack.pop()
        if type(node) is dict or type(node) is list:
            found.append(node)
            stack += list(_children(node))[::-1]
    return found


# -- filters ---------------------------------------------------------------------------------------


def _filter(test: Logical) -> Step:
    equality = simple_equality(test)
    if equality and len(equality[0]) == 1 and all(isinstance(value, str) for value in equality[1]):
        return _filter_text(equality[0][0], equality[1])
    holds = predicate(test)
    return lambda nodes, root: [item for node in nodes for item in _children(node) if holds(item, root)]


def _filter_text(key: str, values: tuple[str, ...]) -> Step:
    if len(values) == 1:
        value = values[0]
        return lambda nodes, _: [
            item for node in nodes for item in _children(node) if type(item) is dict and item.get(key) == value
        ]
    wanted = frozenset(values)
    return lambda nodes, _: [
        item
        for node in nodes
        for item in _children(node)
        if type(item) is dict and type(value := item.get(key)) is str and value in wanted
    ]


def simple_equality(test: Logical) -> tuple[tuple[str, ...], tuple[Any, ...]] | None:
    """(keys, values) if the test says that the value at `@.key.key` equals one of some constants, else None."""
    parts = test.parts if isinstance(test, Or) else (test,)
    found = set()
    values = []
    for part in parts:
        match part:
            case Comparison(Query(_, True) as left, "==", Literal(value)) if left.keys and _names(left.keys):
                found.add(left.keys)
                values.append(value)
            case _:
                return None
    keys = found.pop()
    return None if found else (tuple(map(str, keys)), tuple(values))


def _names(keys: tuple[str | int, ...]) -> bool:
    return all(isinstance(key, str) for key in keys)


def predicate(test: Logical) -> Predicate:
    """The closure of a logical expression."""
    match test:
        case Or(parts):
            return _any(tuple(map(predicate, parts)))
        case And(parts):
            return _all(tuple(map(predicate, parts)))
        case Not(part):
            inner = predicate(part)
            return lambda value, root: not inner(value, root)
        case Comparison():
            return _comparison(test)
        case Test(subject):
            return getter(subject) if isinstance(subject, Call) else _exists(subject)


def _any(tests: tuple[Predicate, ...]) -> Predicate:
    def run(value: Any, root: Any) -> bool:
        for test in tests:  # noqa: SIM110 - a generator costs more than the tests
            if test(value, root):
                return True
        return False

    return run


def _all(tests: tuple[Predicate, ...]) -> Predicate:
    def run(value: Any, root: Any) -> bool:
        for test in tests:  # noqa: SIM110
            if not test(value, root):
                return False
        return True

    return run


def _exists(query: Query) -> Predicate:
    if query.keys is not None:
        get = getter(query)
        return lambda value, root: get(value, root) is not NOTHING
    find = _nodes(query)
    return lambda value, root: bool(find(value, root))


# -- comparisons -----------------------------------------------------------------------------------


def _comparison(test: Comparison) -> Predicate:
    left, right = getter(test.left), getter(test.right)
    if test.operator in ("==", "!="):
        wanted = test.operator == "=="
        if isinstance(test.right, Literal) and isinstance(test.right.value, str):
            constant = test.right.value
            return lambda value, root: (left(value, root) == constant) is wanted
        return lambda value, root: equal(left(value, root), right(value, root)) is wanted
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[test.operator]
    or_equal = test.operator in ("<=", ">=")

    def ordered(value: Any, root: Any) -> bool:
        a, b = left(value, root), right(value, root)
        if (type(a) in (int, float) and type(b) in (int, float)) or (type(a) is str and type(b) is str):
            return bool(compare(a, b))
        return or_equal and equal(a, b)

    return ordered


def equal(left: Any, right: Any) -> bool:
    """Equality of RFC 9535: numbers by value, true is not 1, arrays and objects by their contents.

    Works on a stack: documents nest deeper than Python's call stack.
    """
    pairs = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if type(a) is list and type(b) is list and len(a) == len(b):
            pairs += zip(a, b, strict=True)
        elif type(a) is dict and type(b) is dict and a.keys() == b.keys():
            pairs += ((a[key], b[key]) for key in a)
        elif {list, dict} & {type(a), type(b)} or a != b or isinstance(a, bool) is not isinstance(b, bool):
            return False
    return True


# -- operands --------------------------------------------------------------------------------------


def getter(operand: Operand) -> Getter:
    """The closure of a side of a comparison or of a function's value: the value, or NOTHING."""
    match operand:
        case Literal(value):
            return lambda _, __: value
        case Call():
            return _call(operand)
        case Query():
            assert operand.keys is not None
            return _singular(operand.keys, operand.relative)


def _singular(keys: tuple[str | int, ...], relative: bool) -> Getter:
    if len(keys) == 1 and relative and isinstance(keys[0], str):
        key = keys[0]
        return lambda value, _: value.get(key, NOTHING) if type(value) is dict else NOTHING

    kinds: tuple[tuple[Any, Any], ...] = tuple((dict if isinstance(key, str) else list, key) for key in keys)

    def get(value: Any, root: Any) -> Any:
        value = value if relative else root
        for kind, key in kinds:
            if type(value) is not kind:
                return NOTHING
            try:
                value = value[key]
            except LookupError:
                return NOTHING
        return value

    return get


def _nodes(query: Query) -> Getter:
    run = walk(tuple(map(segment_step, query.segments)))
    if query.relative:
        return lambda value, root: run([value], root)
    return lambda _, root: run([root], root)


def _call(call: Call) -> Getter:
    kinds, _, function = FUNCTIONS[call.name]
    arguments = tuple(_argument(item, kind) for item, kind in zip(call.arguments, kinds, strict=True))
    if len(arguments) == 1:
        only = arguments[0]
        return lambda value, root: function(only(value, root))
    return lambda value, root: function(*(argument(value, root) for argument in arguments))


def _argument(argument: Argument, kind: Kind) -> Getter:
    if kind is Kind.NODES:
        assert isinstance(argument, Query)
        return _nodes(argument)
    assert isinstance(argument, Literal | Query | Call)
    return getter(argument)
