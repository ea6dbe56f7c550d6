"""What `schema:` of a dataset says, as frozen settings with every path compiled; `parsing.parse` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftmill.paths import Condition, Path

ROLES: Mapping[str, str] = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "ai", "assistant", "model", "bot", "chatgpt", "bard", "bing"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "environment"), "tool"),
    "function_call": "function_call",
}
"""Labels that need no declaration; `function_call` is an assistant turn whose text is a call."""

TARGET_ROLES = ("system", "user", "assistant", "tool", "function_call", "drop")
KEEPS = ("first_user", "to_last_user", "to_last_input", "each_user", "full")
Keep = tuple[str, int]
"""A rule of KEEPS with 0, or ("users", n), ("steps", n)."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where a declaration stands, for messages, and the dataset's name."""

    file: str
    dataset: str


@dataclass(frozen=True, slots=True)
class Paths:
    """Alternative paths: the first that gives anything counts; together they are one declared thing."""

    key: str
    options: tuple[Path, ...]

    def __call__(self, value: Any) -> list[Any]:
        """The matches of the first path with one that is neither null nor an empty text; those only."""
        for path in self.options:
            found = [match for match in path(value) if match is not None and match != ""]
            if found:
                return found
        return []

    def one(self, value: Any) -> Any:
        """The match, a list of them if there are several, or None."""
        found = self(value)
        return found[0] if len(found) == 1 else found or None


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """`text`: the first of `options` that is not empty, or all of them joined with `by`."""

    options: tuple[Paths, ...]
    joined: bool = False
    by: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """`role`: a path to a label, a constant, constants in turn, or filters in order with what else holds."""

    path: Paths | None = None
    constant: str | None = None
    in_turn: tuple[str, ...] = ()
    """With `constant` the first of them: the roles of the first turn, the second, …, and again from the start."""
    rules: tuple[tuple[Condition, str], ...] = ()
    otherwise: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Where the parts of a foreign tool spec or call are; without `fields` a known shape is expected."""

    each: Paths
    fields: Mapping[str, Paths] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """`split`: a chat in one string, cut at speakers' markers."""

    markers: tuple[tuple[str, str], ...]
    """(marker, role), in the order declared."""
    at: Literal["line", "any"] = "line"
    prefix: Literal["reject", "drop"] = "reject"
    strip: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block of `turns`."""

    key: str
    each: Paths | None
    role: Role
    text: Text
    parts: Literal["reject", "drop", "placeholder"] = "reject"
    tool_calls: Shape | None = None
    reasoning: Paths | None = None
    take: Literal["all", "first", "last"] = "all"
    pairs: tuple[tuple[str, Text], ...] = ()
    split: Split | None = None
    plain: bool = False
    """Elements are texts of user turns: the one-line form `prompt`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """`system`: where its text is, or a literal text, or that system turns are dropped."""

    paths: Paths | None = None
    text: str | None = None
    drop: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """`tools`: where the specs are (exactly one of `shape` and `from_system`), and what to do with repeats."""

    shape: Shape | None = None
    from_system: bool = False
    between: tuple[str, str] = ("<tools>", "</tools>")
    twice: Literal["warn", "strip"] = "warn"


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """`where`: a filter body, or values that paths must have."""

    condition: Condition | None = None
    values: tuple[tuple[Path, Any], ...] = ()

    @property
    def columns(self) -> frozenset[str] | None:
        """The top-level keys it reads; None if it may read all."""
        read = [path.columns for path, _ in self.values] + ([self.condition.columns] if self.condition else [])
        return None if None in read else frozenset().union(*(columns for columns in read if columns))


@dataclass(frozen=True, kw_only=True, slots=True)
class Join:
    """`join`: the row for which `rows` holds goes to the row with the same `on`, under the key `name`."""

    rows: Condition
    on: Paths
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Expect:
    """`expect`: what the whole dataset must reach, or extract fails."""

    yield_: float = 0.99
    min_rows: int = 1
    max_same: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """A parsed schema; the keys are those of the declaration."""

    context: Context
    blocks: tuple[Block, ...]
    decode: tuple[Paths, ...] = ()
    system: System | None = None
    tools: Tools | None = None
    roles: Mapping[str, str] = field(default_factory=lambda: dict(ROLES))
    empty: frozenset[str] = frozenset({""})
    orphan_tool: Literal["keep", "reject"] = "keep"
    where: Where | None = None
    join: Join | None = None
    last_of: Paths | None = None
    keep: Keep = ("to_last_user", 0)
    id: Paths | None = None
    dedup: tuple[Paths, ...] | None = None
    """None: the user turns and tools; (): every row is kept."""
    group: tuple[Paths, ...] = ()
    meta: Mapping[str, Paths] = field(default_factory=dict)
    flag: Paths | None = None
    """The per-turn flag or weight that `mask: {flag: PATH}` names."""
    expect: Expect = field(default_factory=Expect)

    @property
    def is_prompt(self) -> bool:
        """Whether the one-line form `prompt` is used."""
        return self.blocks[0].plain
