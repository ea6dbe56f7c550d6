"""Reads what the stages left in build/ and params.yaml into one frozen Build.

Reads only: metrics.json of each stage, three integer columns of tokens.parquet, DVCLive's
tables, and a few rows with their masks.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftmill import config
from draftmill.errors import BuildError
from draftmill.files import digest
from draftmill.workspace import BUILD

STAGES = ("extract", "generate", "tokenize")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One dataset's lineage and counters; `dropped` maps "stage: reason" to rows."""

    name: str
    source: str
    revision: str
    licence: str
    answers: str
    declaration: str
    tags: tuple[str, ...]
    is_sample: bool
    read: int
    dropped: dict[str, int]
    trained: dict[str, Any]
    prompt_tokens: list[int] = field(default_factory=list)
    answer_tokens: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """Everything the page shows."""

    target: str
    drafter: str
    conf_digest: str
    lineage: list[tuple[str, str]]
    datasets: list[Dataset]
    blend: dict[str, Any]
    curves: dict[str, list[tuple[int, float]]]
    result: dict[str, Any]
    figures: dict[str, int]

    @property
    def sample_datasets(self) -> list[str]:
        """Names of the datasets that were read from data/samples."""
        return [dataset.name for dataset in self.datasets if dataset.is_sample]


def metrics(stage: str, dataset: str | None = None) -> dict[str, Any]:
    """The metrics.json of a stage; an empty dict for a dataset that has none (an evaluation set is only extracted)."""
    path = BUILD / stage / (dataset or "") / "metrics.json"
    if path.exists():
        return dict(json.loads(path.read_bytes()))
    if dataset is None:
        raise BuildError("is missing", file=path, fix=f"dvc repro {stage}")
    return {}


def collect() -> Build:
    """Gather the Build of the current workspace. Raises BuildError if blend or evaluate left nothing."""
    params = config.params()
    blend = metrics("blend")
    names = list(params["dataset_names"])
    drafter = params["drafter"]
    return Build(
        target=params["target"]["name"],
        drafter=str(drafter.get("name") or drafter["kind"]),
        conf_digest=params["conf_digest"][:16],
        lineage=_lineage(params),
        datasets=[_dataset(name, params, blend) for name in names],
        blend=blend,
        curves=_curves(),
        result=metrics("evaluate"),
        figures={"train_rows": blend["train"]["rows"]},
    )


def _lineage(params: dict[str, Any]) -> list[tuple[str, str]]:
    target = params["target"]
    sections = ("target", "engine", "sampling", "states", "blend", "drafter", "evaluate")
    named = [("target revision", str(target.get("revision"))), ("chat template", str(target.get("template_digest")))]
    named += [("sampling", json.dumps(params["sampling"], sort_keys=True)), ("seed", str(params["seed"]))]
    return named + [(f"{name} digest", digest(params[name], 8)) for name in sections if name in params]


def _dataset(name: str, params: dict[str, Any], blend: dict[str, Any]) -> Dataset:
    declared = params["datasets"][name]
    source = declared["source"]
    is_sample = params["source_mode"] == "sample" and bool(source.get("sample"))
    origin = source.get("sample") if is_sample else source.get("hub") or source.get("files")
    by_stage = {stage: metrics(stage, name) for stage in STAGES}
    dropped = {
        f"{stage}: {reason}": count
        for stage, found in by_stage.items()
        for reason, count in found.get("dropped", {}).items()
    }
    lengths = _lengths(BUILD / "tokenize" / name / "tokens.parquet")
    return Dataset(
        name=name,
        source=str(origin),
        revision="sample" if is_sample else str(source.get("revision") or "not pinned"),
        licence=str(declared.get("licence") or "not stated"),
        answers=str(declared.get("answer_resolved", declared.get("answer"))),
        declaration=digest({key: declared[key] for key in ("source", "schema", "quota", "answer", "mask")}, 8),
        tags=tuple(declared.get("tags") or ()),
        is_sample=is_sample,
        read=int(by_stage["extract"].get("rows_in", 0)),
        dropped=dropped,
        trained=blend.get("datasets", {}).get(name, {}),
        **lengths,
    )


def _lengths(path: Path) -> dict[str, list[int]]:
    import pyarrow.parquet as pq

    if not path.exists():
        return {}
    columns = {"n_prompt_tokens": "prompt_tokens", "n_response_tokens": "answer_tokens"}
    table = pq.read_table(path, columns=[*columns, "spans"])
    lengths = {ours: table[theirs].to_pylist() for theirs, ours in columns.items()}
    return lengths | {"turns": [len(spans) for spans in table["spans"].to_pylist()]}


def _curves() -> dict[str, list[tuple[int, float]]]:
    """DVCLive writes one table for each metric, its name the path below plots/metrics."""
    folder = BUILD / "train" / "metrics" / "plots" / "metrics"
    curves = {}
    for path in sorted(folder.rglob("*.tsv")):
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        points = [(int(row["step"]), float(row[path.stem])) for row in rows if row.get(path.stem)]
        if points:
            curves[path.relative_to(folder).with_suffix("").as_posix()] = points
    return curves
