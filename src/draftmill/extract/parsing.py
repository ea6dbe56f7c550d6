"""From the `schema:` map of a dataset to its typed settings, every path compiled.

    schema = parse(raw, Context(file="conf/dataset/x.yaml", dataset="x"), keep="first_user")

The form of the file has been checked before (validation.py); what is left is what a path, or keys together, get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from draftmill import paths
from draftmill.errors import ConfigError, did_you_mean
from draftmill.extract.schema import (
    KEEPS,
    ROLES,
    TARGET_ROLES,
    Block,
    Context,
    Expect,
    Join,
    Keep,
    Paths,
    Role,
    Schema,
    Shape,
    Split,
    System,
    Text,
    Tools,
    Where,
)
from draftmill.paths import Condition, Path, PathError

_ALONE = {"pairs": ("role", "text", "split", "tool_calls", "reasoning"), "split": ("role", "tool_calls", "reasoning")}
"""Keys of a block that another makes meaningless: its turns are texts, their roles are said."""


def parse(raw: Mapping[str, Any], context: Context, keep: object = None, flag: str | None = None) -> Schema:
    """The typed form of a `schema:` map.

    `keep`: the rule in force, as resolved from the whole declaration (None: the schema's own, or its default
    for regenerated answers). Raises ConfigError with file, key and, for a path, the position.
    """
    return _Parser(context).schema(raw, keep, flag)


class _Parser:
    def __init__(self, context: Context) -> None:
        self.context = context

    def fail(self, key: str, message: str, **more: str | None) -> ConfigError:
        return ConfigError(message, file=self.context.file, key=f"schema.{key}", **more)

    def schema(self, raw: Mapping[str, Any], keep: object, flag: str | None) -> Schema:
        blocks, join = self.blocks(raw), self.join(raw.get("join"))
        expect = raw.get("expect") or {}
        names = {"yield": "yield_", "min_rows": "min_rows", "max_same": "max_same"}
        return Schema(
            context=self.context,
            blocks=blocks,
            decode=self.decode(raw.get("decode"), join),
            system=self.system(raw.get("system")),
            tools=self.tools(raw.get("tools")),
            roles={
                **ROLES,
                **{str(label): self.role_name(to, f"roles.{label}") for label, to in _map(raw.get("roles"))},
            },
            empty=frozenset({"", *(text.strip() for text in _listed(raw.get("empty")))}),
            orphan_tool=raw.get("orphan_tool") or "keep",
            where=self.where(raw.get("where")),
            join=join,
            last_of=self.optional(raw.get("last_of"), "last_of"),
            keep=self.keep(keep or raw.get("keep") or ("first_user" if blocks[0].plain else "to_last_user")),
            id=self.optional(raw.get("id"), "id"),
            dedup=self.dedup(raw.get("dedup")),
            group=self.several(raw.get("group"), "group"),
            meta={name: self.paths(path, f"meta.{name}") for name, path in _map(raw.get("meta"))},
            flag=self.flag(flag),
            expect=Expect(**{names[name]: value for name, value in expect.items() if name in names}),
        )

    # -- paths ------------------------------------------------------------------------------------

    def compiled(self, compiler: Callable[[str], Any], text: object, key: str) -> Any:
        try:
            return compiler(str(text))
        except PathError as error:
            raise self.fail(key, str(error)) from None

    def path(self, text: object, key: str) -> Path:
        compiled: Path = self.compiled(paths.compile, text, key)
        return compiled

    def condition(self, text: object, key: str) -> Condition:
        compiled: Condition = self.compiled(paths.compile_filter, text, key)
        return compiled

    def paths(self, value: object, key: str) -> Paths:
        return Paths(key, tuple(self.path(text, key) for text in _listed(value)))

    def optional(self, value: object, key: str) -> Paths | None:
        return None if value is None else self.paths(value, key)

    def several(self, value: object, key: str) -> tuple[Paths, ...]:
        """Each path for itself: all of them count, none stands in for another."""
        if not isinstance(value, list | tuple):
            return () if value is None else (self.paths(value, key),)
        return tuple(self.paths(text, f"{key}[{i}]") for i, text in enumerate(value))

    def decode(self, raw: Any, join: Join | None) -> tuple[Paths, ...]:
        found = tuple(self.paths(item, f"decode[{i}]") for i, item in enumerate(_listed(raw)))
        for path in found:
            steps = path.options[0].steps
            if join and len(steps) > 1 and steps[0].name == join.name:
                rest = "$" + "".join(step.text for step in steps[1:])
                message = f"`decode` comes before `join`, when there is no '{join.name}' yet"
                raise self.fail(path.key, message, fix=f'write it as it stands in the partner\'s own row:  "{rest}"')
        return found

    def flag(self, path: str | None) -> Paths | None:
        if path is None:
            return None
        try:
            return Paths("mask.flag", (paths.compile(path),))
        except PathError as error:
            raise ConfigError(str(error), file=self.context.file, key="mask.flag") from None

    # -- turns ------------------------------------------------------------------------------------

    def blocks(self, raw: Mapping[str, Any]) -> tuple[Block, ...]:
        turns, prompt = raw.get("turns"), raw.get("prompt")
        if (turns is None) == (prompt is None):
            found = "both" if turns else "neither"
            raise self.fail("turns", "exactly one of `turns` and `prompt` is needed", found=found)
        if prompt is not None:
            return (self.prompt(prompt),)
        if isinstance(turns, list):
            return tuple(self.block(block, f"turns[{i}]") for i, block in enumerate(turns))
        return (self.block(turns or {}, "turns"),)

    def prompt(self, value: object) -> Block:
        text = Text(options=(self.paths("$", "prompt"),))
        return Block(key="prompt", each=self.paths(value, "prompt"), role=Role(constant="user"), text=text, plain=True)

    def block(self, raw: Mapping[str, Any], key: str) -> Block:
        for form, others in _ALONE.items():
            for other in others:
                if raw.get(form) is not None and other in raw:
                    fix = f"leave `{other}` out, or make a block of its own of it"
                    raise self.fail(f"{key}.{other}", f"`{other}` means nothing beside `{form}`", fix=fix)
        calls = raw.get("tool_calls")
        return Block(
            key=key,
            each=self.optional(raw.get("each"), f"{key}.each"),
            role=self.role(raw.get("role", "role"), f"{key}.role"),
            text=self.text(raw.get("text", "content"), f"{key}.text"),
            parts=raw.get("parts") or "reject",
            tool_calls=None if calls is None else self.shape(calls, f"{key}.tool_calls"),
            reasoning=self.optional(raw.get("reasoning"), f"{key}.reasoning"),
            take=raw.get("take") or "all",
            pairs=tuple(
                (self.role_name(role, f"{key}.pairs"), self.text(text, f"{key}.pairs.{role}"))
                for role, text in _map(raw.get("pairs"))
            ),
            split=self.split(raw.get("split"), f"{key}.split"),
        )

    def role(self, raw: Any, key: str) -> Role:
        if not isinstance(raw, Mapping):
            return Role(path=self.paths(raw, key))
        if "as" in raw:
            names = tuple(self.role_name(name, key) for name in _listed(raw["as"]))
            return Role(constant=names[0], in_turn=names if len(names) > 1 else ())
        rules = tuple(
            (self.condition(body, key), self.role_name(name, key)) for body, name in raw.items() if body != "else"
        )
        return Role(rules=rules, otherwise=self.role_name(raw["else"], key) if "else" in raw else None)

    def role_name(self, name: object, key: str) -> str:
        if name in TARGET_ROLES:
            return str(name)
        raise self.fail(key, f"'{name}' is not a role", fix=did_you_mean(str(name), TARGET_ROLES))

    def text(self, raw: Any, key: str) -> Text:
        if isinstance(raw, Mapping):
            return Text(options=self.several(raw["join"], f"{key}.join"), joined=True, by=raw.get("by", ""))
        return Text(options=self.several(raw, key))

    def split(self, raw: Mapping[str, Any] | None, key: str) -> Split | None:
        if raw is None:
            return None
        options = {"at": "line", "prefix": "reject", "strip": None} | {
            name: value for name, value in raw.items() if name in ("at", "prefix", "strip")
        }
        markers = tuple(
            (marker, self.role_name(role, key))
            for role, values in raw.items()
            if role not in options
            for marker in _listed(values)
        )
        if not markers:
            raise self.fail(key, "names no speaker's marker", fix="add one, such as  user: 'USER:'")
        return Split(
            markers=markers, at=options["at"], prefix=options["prefix"], strip=tuple(_listed(options["strip"]))
        )

    # -- the rest ---------------------------------------------------------------------------------

    def shape(self, raw: Any, key: str) -> Shape:
        if not isinstance(raw, Mapping):
            return Shape(each=self.paths(raw, key))
        each = self.paths(raw.get("each", raw.get("path")), f"{key}.each")
        fields = {
            name: self.paths(path, f"{key}.{name}")
            for name, path in raw.items()
            if name in ("name", "description", "parameters", "arguments", "id")
        }
        return Shape(each=each, fields=fields)

    def system(self, raw: Any) -> System | None:
        if isinstance(raw, Mapping):
            return System(text=raw.get("text"), drop=bool(raw.get("drop")))
        return None if raw is None else System(paths=self.paths(raw, "system"))

    def tools(self, raw: Any) -> Tools | None:
        if raw is None:
            return None
        if not isinstance(raw, Mapping):
            return Tools(shape=self.shape(raw, "tools"))
        options = {name: raw[name] for name in ("twice",) if name in raw}
        if "between" in raw:
            options["between"] = tuple(marker or "" for marker in raw["between"])
        if "from" in raw:
            return Tools(from_system=True, **options)
        return Tools(shape=self.shape(raw, "tools"), **options)

    def where(self, raw: Any) -> Where | None:
        if isinstance(raw, Mapping):
            return Where(values=tuple((self.path(path, f"where.{path}"), value) for path, value in raw.items()))
        return None if raw is None else Where(condition=self.condition(raw, "where"))

    def join(self, raw: Mapping[str, Any] | None) -> Join | None:
        if raw is None:
            return None
        return Join(rows=self.condition(raw["rows"], "join.rows"), on=self.paths(raw["on"], "join.on"), name=raw["as"])

    def keep(self, raw: Any) -> Keep:
        if isinstance(raw, Mapping) and len(raw) == 1:
            name, count = next(iter(raw.items()))
            if name in ("users", "steps") and type(count) is int and count > 0:
                return name, count
        elif raw in KEEPS:
            return raw, 0
        fix = did_you_mean(str(raw), [*KEEPS, "{users: 2}", "{steps: 3}"])
        raise self.fail("keep", f"'{raw}' is not a rule", fix=fix)

    def dedup(self, raw: Any) -> tuple[Paths, ...] | None:
        if raw is None:
            return None
        return () if raw == "none" else self.several(raw, "dedup")


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _map(value: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    yield from (value or {}).items()
