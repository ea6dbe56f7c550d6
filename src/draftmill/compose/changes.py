"""What one composition has that another has not: for the person (+ ~ -), and for the plan DVC has already made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# What composing adds: it follows from the rest, and a change of it says nothing new.
DERIVED = ("conf_digest", "dataset_names", "inputs", "answered", "blend_members", "blend_digest", "datasets")


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The difference between two compositions.

    `added` and `removed` are names of datasets that take part; `changed` maps a dataset or section to its changed keys.
    `to_build` are the datasets with stages that a plan made before does not have, `broken` those whose stages in that
    plan are wrong now: removed, or read from another path.
    """

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)
    to_build: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def lines(self) -> Iterator[str]:
        """One line per added, changed, removed dataset or section: `+ name`, `~ name: keys`, `- name`."""
        yield from (f"+ {name}" for name in self.added)
        yield from (f"~ {name}: {', '.join(keys)}" for name, keys in self.changed.items())
        yield from (f"- {name}" for name in self.removed)


def between(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    """The changes from one composed configuration to another; an empty `old` has nothing."""
    old_inputs, new_inputs = old.get("inputs") or {}, new.get("inputs") or {}
    old_answered, new_answered = old.get("answered") or {}, new.get("answered") or {}
    changed = {
        name: keys
        for name in new_inputs
        if name in old_inputs and (keys := list(_keys(old["datasets"][name], new["datasets"][name])))
    }
    rest_old, rest_new = ({key: value[key] for key in value if key not in DERIVED} for value in (old, new))
    for section in sorted(rest_new.keys() | rest_old.keys()) if old else ():
        if rest_old.get(section) != rest_new.get(section):
            changed[section] = list(_keys(rest_old.get(section), rest_new.get(section)))
    broken = [name for name in old_inputs if new_inputs.get(name) != old_inputs[name]]
    broken += [name for name in old_answered if name not in new_answered and name not in broken]
    return Changes(
        added=[name for name in new_inputs if name not in old_inputs],
        removed=[name for name in old_inputs if name not in new_inputs],
        changed=changed,
        to_build=[n for n in new_inputs if n not in old_inputs or (n in new_answered and n not in old_answered)],
        broken=broken,
    )


def _keys(old: Any, new: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys below which two values differ; nothing if they are equal, "" for two unlike scalars."""
    if old == new:
        return
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield prefix or "now " + str(new)
        return
    for key in sorted(old.keys() | new.keys(), key=str):  # YAML has keys that are numbers, and `on`
        if key not in old or key not in new:
            yield f"{prefix}{key}"
        else:
            yield from (name.rstrip(".") for name in _keys(old[key], new[key], f"{prefix}{key}."))


def overrides(composed: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """`key=value` for each value in `found` that is not what was composed: what somebody set by hand."""
    pairs = []
    for dotted in _keys(composed, found):
        if (part := dotted.split(".")[0]) in DERIVED and part != "datasets":
            continue
        value: Any = found
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        pairs.append(f"{dotted}={value}")
    return pairs
