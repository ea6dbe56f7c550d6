"""Which stages a build would run, and why.

`dvc status` compares files and parameters of the configuration as it stands. A plan may be for another one, so
parameters are compared here: dvc.yaml says which a stage tracks, dvc.lock what they were. Files that stages only
read (code, data) are taken from `dvc status`; what a stage would rewrite changes whoever depends on it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftmill import pipeline
from draftmill.compose import tracked
from draftmill.errors import BuildError
from draftmill.workspace import PARAMS

# These two only keep params.yaml and the plan itself up to date.
UPKEEP = ("compose", "replan")
# Follows from `blend`, which is a parameter of the same stage.
ECHOES = ("blend_digest",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A stage that would run: its address (`tokenize@swe_agent`) and the reasons."""

    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stage:
    name: str
    deps: tuple[str, ...]
    params: tuple[tuple[str, str], ...]  # file and key
    outs: tuple[str, ...]


def steps(values: Mapping[str, Any]) -> list[Step]:
    """The stages that a build of the composed configuration `values` would run, in the order of execution."""
    locked = pipeline.locked()
    changed = _changed_files()
    found: list[Step] = []
    rewritten: dict[str, str] = {}
    for stage in _stages(values):
        reasons = list(dict.fromkeys(_reasons(stage, locked.get(stage.name), values, changed, rewritten)))
        if reasons:
            found.append(Step(name=stage.name, reasons=tuple(reasons)))
            rewritten |= dict.fromkeys(stage.outs, stage.name)
    return found


def _stages(values: Mapping[str, Any]) -> Iterator[_Stage]:
    """The declared stages with foreach and templates filled in from `values`."""
    for name, stage in pipeline.declared().items():
        if name in UPKEEP:
            continue
        if "foreach" not in stage:
            yield _filled(name, stage, {})
            continue
        items = values[str(stage["foreach"])[2:-1]]
        for key, item in items.items():
            yield _filled(f"{name}@{key}", stage["do"], {"key": key, "item": item})


def _filled(name: str, stage: Mapping[str, Any], variables: Mapping[str, str]) -> _Stage:
    def text(entry: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda match: variables[match.group(1)], entry)

    def paths(key: str) -> tuple[str, ...]:
        return tuple(text(next(iter(entry)) if isinstance(entry, Mapping) else entry) for entry in stage.get(key, ()))

    files = (entry if isinstance(entry, Mapping) else {PARAMS.name: [entry]} for entry in stage.get("params", ()))
    params = tuple((text(file), key) for entry in files for file, keys in entry.items() for key in keys)
    return _Stage(name=name, deps=paths("deps"), params=params, outs=paths("outs") + paths("metrics"))


def _reasons(
    stage: _Stage,
    locked: Mapping[str, Any] | None,
    values: Mapping[str, Any],
    changed: Mapping[str, list[str]],
    rewritten: Mapping[str, str],
) -> Iterator[str]:
    if locked is None:
        yield "never built"
        return
    recorded = locked.get("params", {})
    for file, key in stage.params:
        if key not in ECHOES and recorded.get(file, {}).get(key, ...) != _value(stage, file, key, values):
            yield f"{key} changed"
    known = {entry["path"] for entry in locked.get("deps", ())}
    yield from (f"{path} is read now" for path in stage.deps if path not in known)
    yield from (f"{path} changed" for path in changed.get(stage.name, ()))
    for path in stage.deps:
        for out, by in rewritten.items():
            if out == path or out.startswith(f"{path}/") or path.startswith(f"{out}/"):
                yield f"after {by.split('@')[0]}"


def _value(stage: _Stage, file: str, dotted: str, values: Mapping[str, Any]) -> Any:
    value: Any = values if file == PARAMS.name else tracked.of(stage.name.partition("@")[2], values)
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _changed_files() -> dict[str, list[str]]:
    """Stage -> changed files that it reads, and outputs that are not as it left them; parameters left out."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "status", "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError("dvc could not say what changed", found=done.stderr.strip(), fix="run `dvc status`")
    changed: dict[str, list[str]] = {}
    parameters = {PARAMS.name, *(path.as_posix() for path in tracked.FOLDER.glob("*.json"))}
    for stage, entries in json.loads(done.stdout or "{}").items():
        for entry in entries:
            if isinstance(entry, dict):
                paths = [*entry.get("changed deps", ()), *entry.get("changed outs", ())]
                known = changed.setdefault(stage.rpartition(":")[2], [])
                known.extend(path for path in paths if path not in parameters)
    return changed
