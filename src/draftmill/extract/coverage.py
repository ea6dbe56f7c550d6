"""Which declared paths have matched something: one that matches nothing in a whole dataset is a mistake.

A path is looked at only until its first match, so that this costs nothing once all have been seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from draftmill.extract.calls import spread
from draftmill.extract.literals import parse
from draftmill.extract.schema import Block, Paths, Schema, Shape
from draftmill.extract.turns import elements_of

_PATTERN = re.compile(r"""\b(?:match|search)\([^'"]*(?:(['"])(.*?)\1|\))""")
Elements = Callable[[Any], list[Any]]


@dataclass(frozen=True, slots=True)
class Probe:
    """One declared thing: its alternatives, and the values of a row that they are applied to."""

    paths: Paths
    elements: Elements
    block: Block | None = None
    in_spec: bool = False
    """The values are tool specs, or calls."""

    @property
    def key(self) -> str:
        """The key of the declaration, below `schema`."""
        return self.paths.key

    def __call__(self, row: Any) -> bool:
        """Whether any of the alternatives matches anything that is not null or empty."""
        # A turn that is a text needs no path to its text.
        bare = self.block is not None and not self.in_spec
        return any((bare and type(element) is str) or self.paths(element) for element in self.elements(row))


def probes(schema: Schema) -> list[Probe]:
    """The probes of a schema, the most telling first: turns, then what they are made of, then the rest of the row.

    Alternatives count as one, and so do texts that stand in for one another.
    """
    found = [Probe(block.each, _row) for block in schema.blocks if block.each]
    for block in schema.blocks:
        elements = elements_of(block)
        found += [Probe(paths, elements, block) for paths in _turn_paths(block)]
        if block.tool_calls:
            found += _of_shape(block.tool_calls, elements, block)
    if schema.flag:
        found.append(Probe(schema.flag, lambda row: [e for block in schema.blocks for e in elements_of(block)(row)]))
    found += [Probe(paths, _row) for paths in _other_paths(schema)]
    return found + (_of_shape(schema.tools.shape, _row, None) if schema.tools and schema.tools.shape else [])


def _of_shape(shape: Shape, elements: Elements, block: Block | None) -> list[Probe]:
    """The probes of the parts that a foreign shape names, over its specs or calls."""

    def inside(row: Any) -> list[Any]:
        return spread([_parsed(match) for element in elements(row) for match in shape.each(element)])

    return [Probe(paths, inside, block, in_spec=True) for paths in shape.fields.values()]


def _parsed(match: Any) -> Any:
    try:
        return parse(match)[0] if type(match) is str else match
    except ValueError:
        return None


def _row(row: Any) -> list[Any]:
    return [row]


def _other_paths(schema: Schema) -> Iterator[Paths]:
    """The paths from the row that are not to turns."""
    yield from schema.decode
    if schema.system and schema.system.paths:
        yield schema.system.paths
    if schema.tools and schema.tools.shape:
        yield schema.tools.shape.each
    if schema.join:
        yield schema.join.on
    yield from (paths for paths in (schema.id, schema.last_of) if paths)
    yield from (*(schema.dedup or ()), *schema.group, *schema.meta.values())


def _turn_paths(block: Block) -> Iterator[Paths]:
    if block.plain:
        return
    if block.role.path and not block.pairs and not block.split:
        yield block.role.path
    for text in [text for _, text in block.pairs] or [block.text]:
        if text.joined or len(text.options) == 1:
            yield from text.options
        else:
            key = text.options[0].key.removesuffix("[0]")
            yield Paths(key, tuple(path for paths in text.options for path in paths.options))
    if block.tool_calls:
        yield block.tool_calls.each
    if block.reasoning:
        yield block.reasoning


def of_pattern(schema: Schema, said: str) -> str:
    """The key, below `schema`, of the path or filter whose pattern `said` speaks of."""
    texts = [(probe.key, path.text) for probe in probes(schema) for path in probe.paths.options]
    for block in schema.blocks:
        texts += [(f"{block.key}.role", condition.text) for condition, _ in block.role.rules]
    if schema.where:
        texts += [("where", path.text) for path, _ in schema.where.values]
        texts += [("where", schema.where.condition.text)] if schema.where.condition else []
    if schema.join:
        texts.append(("join.rows", schema.join.rows.text))
    with_patterns = [(key, text) for key, text in texts if _PATTERN.search(text)]
    # A pattern from the data stands in none of them.
    named = [
        key for key, text in with_patterns if any(found[2] and found[2] in said for found in _PATTERN.finditer(text))
    ]
    return (named or [key for key, _ in with_patterns] or [""])[0]


def columns(schema: Schema) -> frozenset[str] | None:
    """The top-level keys that the schema reads; None if it may read all."""
    wanted: set[str] = set()
    for read in _columns(schema):
        if read is None:
            return None
        wanted |= read
    return frozenset(wanted)


def _columns(schema: Schema) -> Iterator[frozenset[str] | None]:
    for paths in (*(block.each for block in schema.blocks if block.each), *_other_paths(schema)):
        yield from (path.columns for path in paths.options)
    if schema.where:
        yield schema.where.columns
    if schema.join:
        yield schema.join.rows.columns
    for block in schema.blocks:
        if block.each is None:
            yield from _columns_of_row_turn(block)
            if schema.flag:
                yield from (path.columns for path in schema.flag.options)


def _columns_of_row_turn(block: Block) -> Iterator[frozenset[str] | None]:
    """What a block reads whose one turn is the row itself."""
    for paths in _turn_paths(block):
        yield from (path.columns for path in paths.options)
    yield from (condition.columns for condition, _ in block.role.rules)
    yield frozenset({"tool_calls", "reasoning_content"})
