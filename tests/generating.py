"""A workspace with one extracted dataset, for the tests of generate."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from draftmill import config
from draftmill.generate.settings import Engine, Identity, Sampling
from draftmill.target import Target, renderer

ROOT = Path(__file__).parent.parent
COLUMNS = ("id", "conversation", "tools", "group", "dedup", "meta")


def write_rows(folder: Path, conversations: list[list[dict[str, Any]]], dataset: str = "demo", **columns: Any) -> None:
    """build/extract/<dataset>/rows.parquet; further columns by name, one value for all rows or a list."""
    rows = []
    for i, conversation in enumerate(conversations):
        row = {"id": f"{i:06d}", "conversation": json.dumps(conversation), "group": "aa", "dedup": "bb"}
        rows.append(row | {name: value[i] if isinstance(value, list) else value for name, value in columns.items()})
    path = folder / "build/extract" / dataset / "rows.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in COLUMNS])), path)


def questions(count: int) -> list[list[dict[str, Any]]]:
    """Conversations of one short user turn each."""
    return [[{"role": "user", "content": f"What is {i} plus {i % 7}?"}] for i in range(count)]


def write_params(folder: Path, target: Target, dataset: str = "demo", **changes: Any) -> None:
    """params.yaml with the sections that generate reads."""
    names = changes.pop("datasets", [dataset])
    declared = {"quota": "all", "answer_resolved": "regenerate", "keep_resolved": "first_user"}
    declared |= {name: changes.pop(name) for name in list(declared) if name in changes}
    engine = changes.pop("engine", Engine(name="transformers", identity=Identity(dtype="float32")))
    sampling = changes.pop("sampling", Sampling(max_new_tokens=12))
    renderer(target)  # leaves what it reads of the tokenizer in .draftmill, for programs that start here
    threads = changes.pop("threads", 1)
    run = {"device": "cpu", "threads": threads, "generate": changes.pop("run", {})}
    whole = {
        "datasets": dict.fromkeys(names, declared),
        "answered": dict.fromkeys(names, ""),
        "target": dataclasses.asdict(target),
        "engine": dataclasses.asdict(engine),
        "sampling": dataclasses.asdict(sampling),
        "run": run,
        "seed": 0,
        "quota_cap": None,
        **changes,
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(whole))))
    config._load.cache_clear()


def answers(folder: Path, dataset: str = "demo") -> list[dict[str, Any]]:
    """The rows of answers.parquet, JSON columns loaded."""
    rows = pq.read_table(folder / "build/generate" / dataset / "answers.parquet").to_pylist()
    return [row | {name: json.loads(row[name]) for name in ("conversation", "turns")} for row in rows]


def metrics(folder: Path, dataset: str = "demo") -> dict[str, Any]:
    """metrics.json."""
    loaded: dict[str, Any] = json.loads((folder / "build/generate" / dataset / "metrics.json").read_text())
    return loaded


def figures(folder: Path, dataset: str = "demo") -> dict[str, Any]:
    """What the last run recorded."""
    loaded: dict[str, Any] = json.loads((folder / ".draftmill/runs/generate" / f"{dataset}.json").read_text())
    return loaded


def stage(folder: Path, dataset: str = "demo", **more: Any) -> subprocess.Popen[str]:
    """The stage's own program, started."""
    environment = {name: value for name, value in os.environ.items() if name != "DRAFTMILL_KEEP"}
    return subprocess.Popen(
        [sys.executable, "-P", str(ROOT / "stages/generate.py"), dataset],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )
