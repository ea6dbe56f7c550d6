"""The tree of keys of rows: types, how often a key is null or missing, and examples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from draftmill.console import excerpt

MAX_KEYS = 40
MAX_DEPTH = 7
MAX_EXAMPLES = 2
_KINDS = {str: "text", bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}


@dataclass(slots=True)
class Node:
    """What stands at one path: `count` values that are not null, by type, and the keys or elements below."""

    count: int = 0
    types: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    keys: dict[str, Node] = field(default_factory=dict)
    elements: Node | None = None
    more_keys: bool = False

    def add(self, value: Any, depth: int = 0) -> None:
        """Count a value and what it holds."""
        if value is None:
            return
        self.count += 1
        self.types[_KINDS.get(type(value), type(value).__name__)] += 1
        if isinstance(value, dict):
            self._add_keys(value, depth)
        elif isinstance(value, list):
            self.elements = self.elements or Node()
            for item in value if depth < MAX_DEPTH else ():
                self.elements.add(item, depth + 1)
        elif len(self.examples) < MAX_EXAMPLES and value != "":
            shown = excerpt(value if isinstance(value, str) else json.dumps(value), 40)
            if shown not in self.examples:
                self.examples.append(shown)

    def _add_keys(self, value: dict[str, Any], depth: int) -> None:
        for key, item in value.items() if depth < MAX_DEPTH else ():
            if key not in self.keys and len(self.keys) == MAX_KEYS:
                self.more_keys = True  # the keys are data themselves, such as ids
                continue
            self.keys.setdefault(key, Node()).add(item, depth + 1)

    def lines(self, name: str = "row", indent: int = 0, of: int = 0) -> Iterator[str]:
        """One line a key: its types, the share of nulls among the `of` objects that could have it, examples."""
        kinds = " or ".join(kind for kind, _ in self.types.most_common()) or "null"
        missing = f", null {1 - self.count / of:.0%}" if of > self.count else ""
        examples = f"  {' | '.join(self.examples)}" if self.examples else ""
        yield f"{'  ' * indent}{name}: {kinds}{missing}{examples}"
        objects = self.types["object"]
        for key, node in self.keys.items():
            yield from node.lines(excerpt(key, 40), indent + 1, objects)
        if self.more_keys:
            yield f"{'  ' * (indent + 1)}… more keys"
        if self.elements is not None and self.elements.count:
            yield from self.elements.lines("[*]", indent + 1)


def tree(rows: list[Any]) -> Node:
    """The tree of keys of `rows`."""
    root = Node()
    for row in rows:
        root.add(row)
    return root
