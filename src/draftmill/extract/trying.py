"""`draftmill try`: a declaration run over its source or some files, without a build.

What it prints is what the stage would count; where the stage would fail, it fails in the same words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftmill import config
from draftmill.console import excerpt, printable
from draftmill.errors import ConfigError, DataError, UsageError, did_you_mean
from draftmill.extract.coverage import probes
from draftmill.extract.declaration import Declaration, from_map
from draftmill.extract.failures import check, explain, sample_rows
from draftmill.extract.run import Outcome, collected
from draftmill.extract.turns import elements_of, label_of
from draftmill.extract.validation import validate
from draftmill.workspace import PARAMS

FOLDER = Path("conf/dataset")
FIRST_SHOWN, FIRST_IN_JSON, TEXT_CHARS = 3, 20, 400
MEMORY_BYTES = 1 << 30  # rows in memory stay in the order of the files


def attempt(
    declared: str, files: Sequence[str] = (), rows: int | None = None, explained: bool = False, as_json: bool = False
) -> None:
    """Run the declaration named or at the path `declared` and print what comes of it, then fail where extract would."""
    declaration = replace(read(declared, files), limit=rows)
    with collected(declaration, memory=MEMORY_BYTES) as outcome:
        if as_json:
            print(json.dumps(_as_json(outcome, declaration, explained), ensure_ascii=True), flush=True)
        else:
            print(printable("\n".join(_as_text(outcome, declaration, explained))), flush=True)
        check(outcome, declaration)


def read(declared: str, files: Sequence[str] = ()) -> Declaration:
    """The declaration of a dataset's name or a YAML file, with `files` as its source if any.

    Raises UsageError for an unknown name, DataError for a YAML file that is not there, ConfigError.
    """
    path = Path(declared)
    if path.suffix not in (".yaml", ".yml"):
        path = FOLDER / f"{declared}.yaml"
        if not path.is_file():
            known = [file.stem for file in FOLDER.glob("*.yaml")]
            fix = did_you_mean(declared, known) if known else "give the path of a YAML file"
            raise UsageError(f"no dataset '{declared}'", file=path, fix=fix)
    raw = _loaded(path)
    if files:
        raw["source"] = {"files": list(files), **{k: v for k, v in (raw.get("source") or {}).items() if k == "rows"}}
    validate(path.stem, raw, str(path))
    composed = config.params() if PARAMS.exists() else {}
    built = (composed.get("datasets") or {}).get(path.stem) or {}
    if isinstance(raw.get("answer"), dict) and raw["answer"] == built.get("answer"):
        raw["answer_resolved"] = built.get("answer_resolved")  # native_to: the target decides
    return from_map(path.stem, raw, str(path), composed.get("source_mode") or "real")


def _loaded(path: Path) -> dict[str, Any]:
    """The file as Hydra reads it. Raises ConfigError."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not path.is_file():
        raise DataError("there is no such file", file=path)
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        fix = "quote a path that begins with @, * or [, and any path with brackets or commas inside { }"
        fix = "leave one of the two out" if "duplicate key" in str(error) else fix
        raise ConfigError(f"not valid YAML: {error}", file=path, fix=fix) from None
    if not isinstance(loaded, dict):
        raise ConfigError("is not a map with source and schema", file=path)
    return {str(key): value for key, value in loaded.items()}


# -- what is shown --------------------------------------------------------------------------------


def first_rows(outcome: Outcome, limit: int) -> list[dict[str, Any]]:
    """{id, messages, tools?} of the first rows kept, in the order of the files."""
    shown: list[dict[str, Any]] = []
    for run, alive in enumerate(outcome.reduced.alive):
        for place in alive.nonzero()[0][: limit - len(shown)].tolist():
            row = outcome.reduced.runs[run].row(place)
            entry = {"id": row["id"], "messages": json.loads(row["conversation"])}
            shown.append(entry | ({"tools": json.loads(row["tools"])} if row["tools"] else {}))
    return shown


def _as_json(outcome: Outcome, declaration: Declaration, explained: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "rows": outcome.rows,
        "kept": outcome.kept,
        "filtered": outcome.filtered.total(),
        "duplicates": outcome.duplicates,
        "rejects": dict(sorted(outcome.rejects.items())),
        "notes": {name: count for name, count in sorted(outcome.notes.items()) if count},
        "first": first_rows(outcome, FIRST_IN_JSON),
    }
    return shown | ({"explain": list(explanations(declaration))} if explained else {})


def _as_text(outcome: Outcome, declaration: Declaration, explained: bool) -> Iterator[str]:
    schema = declaration.schema
    yield f"{declaration.name}: {', '.join(dict.fromkeys(part.chunk.file for part in outcome.parts))}"
    yield f"  rows {outcome.rows}, kept {outcome.kept}, duplicates {outcome.duplicates}"
    for title, counts in (("filtered", outcome.filtered), ("rejected", outcome.rejects), ("noted", outcome.notes)):
        yield f"  {title} {_counted(counts)}"
    yield f"  yield {outcome.yield_:.3f} ({schema.expect.yield_:g} expected), same user turns {outcome.max_same:.0%}"
    if explained:
        yield from map(_explanation, explanations(declaration))
    for number, row in enumerate(first_rows(outcome, FIRST_SHOWN), 1):
        yield f"\n--- {number} of {outcome.kept}: {excerpt(row['id'], 60)}"
        if "tools" in row:
            yield f"tools: {', '.join(excerpt(str(tool['function']['name']), 40) for tool in row['tools'])}"
        yield from map(_turn, row["messages"])


def _counted(counts: Counter[str]) -> str:
    listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
    return f"{counts.total()} ({listed})" if listed else "0"


def _turn(message: dict[str, Any]) -> str:
    lines = [f"[{message['role']}] {excerpt(message['content'], TEXT_CHARS)}"]
    if "reasoning" in message:
        lines.append(f"    reasoning: {excerpt(message['reasoning'], TEXT_CHARS)}")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        lines.append(f"    calls {function['name']}({excerpt(json.dumps(function['arguments']), TEXT_CHARS)})")
    return "\n".join(lines)


# -- --explain ------------------------------------------------------------------------------------


def explanations(declaration: Declaration) -> Iterator[dict[str, Any]]:
    """For each declared path, over the first rows that `where` lets through: what it is in RFC 9535, what it matched
    (rows, and how many of them), or where it stopped and the fix; last, the role labels with counts."""
    rows = sample_rows(declaration)
    for probe in probes(declaration.schema):
        matched = sum(probe(row) for row in rows)
        entry: dict[str, Any] = {
            "key": probe.key if probe.key.startswith("mask") else f"schema.{probe.key}",
            "path": [path.text for path in probe.paths.options],
            "canonical": [path.canonical for path in probe.paths.options],
            "rows": len(rows),
            "matched": matched,
        }
        if not matched and rows:
            walked = explain(probe, rows, declaration)
            entry |= {"stopped": walked.found, "fix": walked.fix}
        yield entry
    yield {"key": "schema.roles", "labels": dict(labels(declaration, rows).most_common(30))}


def labels(declaration: Declaration, rows: Sequence[Any]) -> Counter[str]:
    """The role labels of the turns of some rows, with counts."""
    counts: Counter[str] = Counter()
    for block in declaration.schema.blocks:
        if block.role.constant is None and not block.pairs and not block.split:
            find, elements = label_of(block.role, declaration.schema.roles), elements_of(block)
            counts.update(find(element)[0] for row in rows for element in elements(row) if type(element) is dict)
    return counts


def _explanation(entry: dict[str, Any]) -> str:
    if "labels" in entry:
        shown = ", ".join(f"{excerpt(label, 40)} {count}" for label, count in entry["labels"].items())
        return f"  {entry['key']}: labels seen: {shown or 'none'}"
    lines = [f"  {entry['key']}: matched in {entry['matched']} of {entry['rows']} rows"]
    lines += [f"      {text}  =  {full}" for text, full in zip(entry["path"], entry["canonical"], strict=True)]
    if "stopped" in entry:
        lines.append(f"      stopped: {entry['stopped']}")
        lines += [f"      fix: {entry['fix']}"] if entry["fix"] else []
    return "\n".join(lines)
