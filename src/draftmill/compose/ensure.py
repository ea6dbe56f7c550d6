"""Keeping params.yaml equal to what conf/ composes to, and noticing what somebody set by hand.

A copy of what was composed last stands in .draftmill/compose/. Where params.yaml differs from it, values were set
with `dvc exp run -S`: a build names them, and a recomposition refuses to lose them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftmill.compose.changes import Changes, between, overrides
from draftmill.compose.composition import Composition, composed, parse
from draftmill.compose.sources import CONF, conf_digest
from draftmill.compose.validation import validate
from draftmill.console import say
from draftmill.errors import BuildError, ConfigError
from draftmill.files import write_json, write_text
from draftmill.workspace import PARAMS

# Of this checkout, whatever DRAFTMILL_KEEP says: an experiment in another checkout has its own params.yaml.
_NOTES = Path(".draftmill/compose")
COPY = _NOTES / "params.yaml"
ADDED = _NOTES / "added.json"


def ensure_composed() -> Changes:
    """Compose if conf/ changed since; else only name the overrides in effect. Returns what changed.

    Raises ConfigError for a faulty configuration, or for overrides that a recomposition would lose.
    """
    digest = conf_digest(CONF)
    now = _read(PARAMS)
    if now.get("conf_digest") != digest:
        changes = recompose()
        write_json(ADDED, changes.to_build)
        return changes
    copy = _read(COPY)
    if copy.get("conf_digest") != digest:  # composed elsewhere: by DVC, or in the commit that was checked out
        fresh = composed()
        write_text(COPY, fresh.text)
        copy = fresh.values
    if set_by_hand := overrides(copy, now):
        validate(Composition(text="", values=now, choices={}))
        say(f"overrides in effect: {' '.join(set_by_hand)}")
    return Changes()


def recompose(*, reset: bool = False) -> Changes:
    """Compose, validate everything, write params.yaml and its copy, and print + added ~ changed - removed.

    With `reset`, values set by hand are dropped; without, they are a ConfigError that names both ways out.
    """
    now, copy = _read(PARAMS), _read(COPY)
    if not reset and copy and copy.get("conf_digest") == now.get("conf_digest"):
        _refuse_to_lose(overrides(copy, now))
    fresh = composed()
    validate(fresh)
    changes = between(now, fresh.values)
    write_text(PARAMS, fresh.text)
    write_text(COPY, fresh.text)
    ADDED.unlink(missing_ok=True)
    for line in changes.lines():
        say(line)
    return changes


def stop_if_broken(changes: Changes) -> None:
    """Raise BuildError where the plan DVC has already made holds stages that are wrong now."""
    if changes.broken:
        what = "was removed" if set(changes.broken) <= set(changes.removed) else "changed its input or role"
        raise BuildError(
            f"{', '.join(changes.broken)} {what}; params.yaml is up to date now; run the same command again"
        )


def _refuse_to_lose(set_by_hand: list[str]) -> None:
    if set_by_hand:
        raise ConfigError(
            "holds values that were set by hand, and conf/ has changed since: composing would lose them",
            file=PARAMS,
            found=" ".join(set_by_hand),
            fix="write them into conf/ (an experiment file, say), or drop them with  draftmill compose --reset",
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    loaded = parse(path.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, dict) else {}
