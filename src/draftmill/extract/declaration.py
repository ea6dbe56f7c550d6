"""A dataset's declaration, from params.yaml or a YAML file, as the settings of extract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftmill.config import build, declared, params
from draftmill.extract.parsing import parse
from draftmill.extract.schema import Context, Schema
from draftmill.extract.source import Source


@dataclass(frozen=True, slots=True)
class Declaration:
    """What extract needs to know about a dataset."""

    name: str
    file: str
    """The file to edit, for messages."""
    source: Source
    schema: Schema
    limit: int | None = None
    """Rows to read at most; None: all."""


def load(name: str) -> Declaration:
    """The declaration of a dataset in params.yaml. Raises UsageError for an unknown name, ConfigError."""
    return from_map(name, declared(name), f"conf/dataset/{name}.yaml", params().get("source_mode") or "real")


def from_map(name: str, raw: Mapping[str, Any], file: str, mode: str) -> Declaration:
    """The declaration in a dataset's map; its form has been checked. Raises ConfigError."""
    raw = normalized(raw)
    try:
        schema = parse(raw.get("schema") or {}, Context(file, name), _keep(raw), _flag(raw))
    except (TypeError, AttributeError, KeyError):
        from draftmill.extract.validation import check_form

        check_form(raw, file)  # says what is wrong; if it finds nothing, the fault is ours
        raise
    source = build(Source, raw.get("source") or {}, file=file, key="source").pick(
        "sample" if mode == "sample" else "real"
    )
    return Declaration(name, file, source, schema)


def normalized(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """`raw` with the key `on` of `join`, which YAML 1.1 reads as true."""
    schema = raw.get("schema")
    join = schema.get("join") if isinstance(schema, Mapping) else None
    if not isinstance(schema, Mapping) or not isinstance(join, Mapping) or True not in join:
        return raw
    join = {"on" if key is True else key: value for key, value in join.items()}
    return {**raw, "schema": {**schema, "join": join}}


def _keep(raw: Mapping[str, Any]) -> object:
    """The rule in force: as composed, or what the schema says, or `full` for recorded answers."""
    if raw.get("keep_resolved"):
        return raw["keep_resolved"]
    recorded = raw.get("answer_resolved", raw.get("answer")) == "dataset"
    return (raw.get("schema") or {}).get("keep") or ("full" if recorded else None)


def _flag(raw: Mapping[str, Any]) -> str | None:
    """The path of `mask: {flag: PATH}`."""
    if "flag_resolved" in raw:
        flag: str | None = raw["flag_resolved"]
        return flag
    mask = raw.get("mask")
    return mask.get("flag") if isinstance(mask, Mapping) else None
