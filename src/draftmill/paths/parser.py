"""One recursive-descent parser for RFC 9535 paths and for the shorthand.

    path    := rfc9535-path                       begins with "$"
             | name segment* | bracket segment*   shorthand: "$" is understood
    bracket := "[" pred ("," pred)* "]"           shorthand filter, begins with a letter
             | "[" whatever RFC 9535 allows "]"
    pred    := name ("." name)* ("=" | "==" | "!=") value ("|" value)*
    value   := true | false | null | number | bare word | quoted string

The shorthand is only notation: both forms give the same syntax tree.
"""

from __future__ import annotations

import re

from draftmill.paths.functions import Kind, check_call
from draftmill.paths.scanner import NUMBER, Scanner
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
    Wildcard,
)

MAX_INTEGER = 2**53 - 1

_NAME = re.compile("[A-Za-z_\u0080-\ud7ff\ue000-\U0010ffff][0-9A-Za-z_\u0080-\ud7ff\ue000-\U0010ffff]*")
_INTEGER = re.compile(r"-?[0-9]+")
_FUNCTION = re.compile(r"[a-z][a-z0-9_]*(?=\()")
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>")
_BARE_WORD = re.compile(r"""[^\s,|\[\]()'"=!&<>]+""")
_CONSTANTS = {"true": True, "false": False, "null": None}


class Parser(Scanner):
    """Reads one path or filter body; every method starts at `self.position` and moves it on."""

    # -- whole texts ---------------------------------------------------------------------------

    def path(self) -> Query:
        """The whole text as a path."""
        shorthand = not self.take("$")
        first: tuple[Segment, ...] = ()
        if shorthand and not self.at("["):
            if not (name := self.match(_NAME)):
                raise self.error("a path begins with a name, '[' or '$'" if self.text else "an empty path")
            first = (Segment((Name(name),)),)
        query = Query(first + self.segments(shorthand))
        self.end()
        return query

    def filter_body(self) -> Logical:
        """The whole text as what may stand between `[?` and `]`."""
        self.blanks()
        test = self.logical_or()
        self.blanks()
        self.end()
        return test

    def end(self) -> None:
        """Fail unless the text is used up."""
        if self.position == len(self.text):
            return
        if self.text[self.position] == "-":
            raise self.error("a name with '-' must be quoted: ['the-name']")
        if self.text[self.position] == "=":
            raise self.error("'=' belongs into brackets: [key=value]")
        raise self.error(f"'{self.text[self.position]}' is not expected here")

    # -- segments and selectors ----------------------------------------------------------------

    def segments(self, shorthand: bool = False) -> tuple[Segment, ...]:
        """All segments from here on."""
        found = []
        while True:
            start = self.position
            self.blanks()
            if self.take(".."):
                found.append(self.segment_after_dot(shorthand, descendant=True))
            elif self.take("."):
                found.append(self.segment_after_dot(shorthand, descendant=False))
            elif self.at("["):
                found.append(Segment(self.bracket(shorthand)))
            else:
                self.position = start
                return tuple(found)

    def segment_after_dot(self, shorthand: bool, descendant: bool) -> Segment:
        """What follows `.` or `..`: a name, `*`, or after `..` a bracket."""
        if descendant and self.at("["):
            return Segment(self.bracket(shorthand), descendant=True)
        if self.take("*"):
            return Segment((Wildcard(),), descendant)
        if name := self.match(_NAME):
            return Segment((Name(name),), descendant)
        if self.at("'", '"'):
            raise self.error("a quoted name stands in brackets: ['name'], without '.'")
        if digits := self.match(_INTEGER):
            self.position -= len(digits)
            raise self.error(f"an index stands in brackets: [{digits}]")
        raise self.error("a name or '*' must follow '.'")

    def bracket(self, shorthand: bool) -> tuple[Selector, ...]:
        """`[...]`, both kinds."""
        self.expect("[")
        self.blanks()
        if self.look(_NAME):
            if shorthand:
                return (self.predicates(),)
            raise self.error(
                "a name in brackets must be quoted, and a filter begins with '?', in a path that begins with '$'"
            )
        selectors = [self.selector()]
        while self.separator("]"):
            selectors.append(self.selector())
        return tuple(selectors)

    def separator(self, closing: str) -> bool:
        """True after a comma and blanks, False after the closing bracket."""
        self.blanks()
        if self.take(closing):
            return False
        if not self.take(","):
            raise self.error(f"',' or '{closing}' is missing")
        self.blanks()
        return True

    def selector(self) -> Selector:
        """One selector of an RFC bracket."""
        if self.at("'", '"'):
            return Name(self.string())
        if self.take("*"):
            return Wildcard()
        if self.take("?"):
            self.blanks()
            return Filter(self.logical_or())
        return self.index_or_slice()

    def index_or_slice(self) -> Index | Slice:
        """`3`, `-1`, `1:2`, `::-1`."""
        start = self.integer()
        after_start = self.position
        self.blanks()
        if not self.take(":"):
            self.position = after_start
            if start is None:
                raise self.error("a quoted name, an index, a slice, '*' or '?' is missing" + self.hint_selector())
            return Index(start)
        self.blanks()
        stop, step = self.integer(), None
        after_stop = self.position
        self.blanks()
        if self.take(":"):
            self.blanks()
            step = self.integer()
            after_stop = self.position if step is not None else after_stop
        return Slice(start, stop, step)

    def hint_selector(self) -> str:
        """A half sentence on a filter without `?`."""
        return ": a filter begins with '?'" if self.at("@", "(", "!") else ""

    def integer(self) -> int | None:
        """An index or slice bound, or None where there is no number."""
        start = self.position
        if not (digits := self.match(_INTEGER)):
            return None
        if digits.startswith("-0") or (digits[0] == "0" and digits != "0"):
            raise self.error(f"{digits} is not an index: no leading zeros", start)
        if len(digits) > 17 or abs(int(digits)) > MAX_INTEGER:
            raise self.error("an index must lie between -(2**53 - 1) and 2**53 - 1", start)
        return int(digits)

    # -- the shorthand filter ------------------------------------------------------------------

    def predicates(self) -> Filter:
        """`role=user|human, lang!=en]`, after the opening bracket."""
        parts = [self.predicate()]
        while self.separator("]"):
            parts.append(self.predicate())
        return Filter(parts[0] if len(parts) == 1 else And(tuple(parts)))

    def predicate(self) -> Logical:
        """`key.key = value | value`."""
        segments = [Segment((Name(self.shorthand_key()),))]
        while self.take("."):
            segments.append(Segment((Name(self.shorthand_key()),)))
        self.blanks()
        wanted = not self.take("!=")
        if wanted and not (self.take("==") or self.take("=")):
            raise self.error("'=' or '!=' is missing: [key=value]; an existing key is chosen by ['key']")
        operator = "==" if wanted else "!="
        tests: list[Logical] = []
        while True:
            self.blanks()
            tests.append(Comparison(Query(tuple(segments), relative=True), operator, self.shorthand_value()))
            self.blanks()
            if not self.take("|"):
                break
        if len(tests) == 1:
            return tests[0]
        return Or(tuple(tests)) if wanted else And(tuple(tests))

    def shorthand_key(self) -> str:
        """A bare key of a predicate."""
        if name := self.match(_NAME):
            return name
        raise self.error("a bare key is missing; others need [?@['the-key'] == 'value']")

    def shorthand_value(self) -> Literal:
        """A constant, number, bare word or quoted string."""
        if self.at("'", '"'):
            return Literal(self.string())
        start = self.position
        word = self.match(_BARE_WORD)
        if not word:
            raise self.error("a value is missing; other signs than letters, digits and -+._/: must be quoted")
        if word in _CONSTANTS:
            return Literal(_CONSTANTS[word])
        if NUMBER.fullmatch(word):
            self.position = start
            return self.number()
        return Literal(word)

    # -- filter expressions --------------------------------------------------------------------

    def logical_or(self) -> Logical:
        """`a || b`."""
        parts = [self.logical_and()]
        while self.infix("||"):
            parts.append(self.logical_and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def logical_and(self) -> Logical:
        """`a && b`."""
        parts = [self.basic()]
        while self.infix("&&"):
            parts.append(self.basic())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def infix(self, sign: str) -> bool:
        """Whether `sign` follows, blanks on both sides allowed."""
        start = self.position
        self.blanks()
        if self.take(sign):
            self.blanks()
            return True
        if self.at(sign[0]):
            raise self.error(f"write {sign}, not {sign[0]}")
        self.position = start
        return False

    def basic(self) -> Logical:
        """A parenthesis, a negation, a comparison or a test."""
        if self.take("!"):
            self.blanks()
            return Not(self.parenthesis() if self.at("(") else self.test(*self.operand()))
        if self.at("("):
            return self.parenthesis()
        start, left = self.operand()
        after = self.position
        self.blanks()
        if not (operator := self.match(_OPERATOR)):
            if self.at("="):
                raise self.error("write == to compare")
            self.position = after
            return self.test(start, left)
        self.blanks()
        right_start, right = self.operand()
        return Comparison(self.comparable(start, left), operator, self.comparable(right_start, right))

    def parenthesis(self) -> Logical:
        """`( a || b )`."""
        opened = self.position
        self.expect("(")
        self.deeper(opened)
        self.blanks()
        inside = self.logical_or()
        self.blanks()
        self.expect(")")
        self.depth -= 1
        return inside

    def test(self, start: int, operand: Operand) -> Test:
        """`operand` as a test of existence; only a path or a yes-or-no function can be one."""
        if isinstance(operand, Literal):
            raise self.error("a constant alone is not a test", start)
        if isinstance(operand, Call) and Kind.of(operand) is Kind.VALUE:
            raise self.error(f"{operand.name}() gives a value: compare it with something", start)
        return Test(operand)

    def comparable(self, start: int, operand: Operand) -> Operand:
        """`operand` as a side of a comparison: it must give one value at most."""
        if isinstance(operand, Query) and operand.keys is None:
            raise self.error("a path that can match several values cannot be compared: use value() or count()", start)
        if isinstance(operand, Call) and Kind.of(operand) is not Kind.VALUE:
            raise self.error(f"{operand.name}() answers yes or no and cannot be compared", start)
        return operand

    def operand(self) -> tuple[int, Operand]:
        """A constant, a path or a call, with its position."""
        start = self.position
        if self.take("@"):
            return start, self.query(start, relative=True)
        if self.take("$"):
            return start, self.query(start, relative=False)
        if self.at("'", '"'):
            return start, Literal(self.string())
        if self.look(NUMBER):
            return start, self.number()
        if name := self.match(_FUNCTION):
            return start, self.call(name, start)
        word = self.match(_NAME)
        if word in _CONSTANTS:
            return start, Literal(_CONSTANTS[word])
        if word:
            raise self.error(f"'{word}' is not a value: a key is written @.{word}, a text '{word}'", start)
        raise self.error("a path from @ or $, a constant or a function is missing")

    def query(self, start: int, relative: bool) -> Query:
        """The segments after `@` or `$` inside a filter."""
        self.deeper(start)
        segments = self.segments()
        self.depth -= 1
        return Query(segments, relative)

    def call(self, name: str, start: int) -> Call:
        """`name(argument, ...)`."""
        self.expect("(")
        self.deeper(start)
        self.blanks()
        arguments: list[Argument] = []
        if not self.take(")"):
            arguments.append(self.argument())
            while self.separator(")"):
                arguments.append(self.argument())
        self.depth -= 1
        call = Call(name, tuple(arguments))
        if complaint := check_call(call):
            raise self.error(complaint, start)
        return call

    def argument(self) -> Argument:
        """A function's argument: an operand, or a logical expression."""
        start = self.position
        if not self.at("!", "("):
            _, operand = self.operand()
            after = self.position
            self.blanks()
            if self.at(",", ")"):
                self.position = after
                return operand
        self.position = start
        return self.logical_or()
