"""Where the stages are declared, how DVC addresses them, and what its lock files say of them.

A dataset's stages stand in pipeline/<stage>/dvc.yaml, the others in dvc.yaml: DVC rewrites the lock file beside
a dvc.yaml after each stage of it, in time that grows with the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftmill.files import parse_yaml

PER_DATASET = ("extract", "generate", "tokenize", "hidden_states")


def folder(stage: str) -> Path:
    """The folder whose dvc.yaml declares a stage, given as `blend` or `generate@swe_agent`."""
    kind = stage.partition("@")[0]
    return Path("pipeline", kind) if kind in PER_DATASET else Path()


def address(stage: str, dataset: str | None = None) -> str:
    """What `dvc repro` calls a stage: pipeline/generate/dvc.yaml:generate@swe_agent."""
    name = f"{stage}@{dataset}" if dataset else stage
    return name if folder(stage) == Path() else f"{folder(stage).as_posix()}/dvc.yaml:{name}"


def repro(stage: str, dataset: str | None = None) -> str:
    """The command that builds one stage, for messages."""
    return f"dvc repro {address(stage, dataset)}"


def declared() -> dict[str, Any]:
    """The `stages` of every dvc.yaml, in the order of execution."""
    root = _stages(Path("dvc.yaml"))
    datasets = {name: stage for kind in PER_DATASET for name, stage in _stages(folder(kind) / "dvc.yaml").items()}
    return datasets | root


def locks() -> list[Path]:
    """Every dvc.lock, there or not."""
    return [path / "dvc.lock" for path in (Path(), *map(folder, PER_DATASET))]


def locked(kind: str | None = None) -> dict[str, Any]:
    """What every dvc.lock has, or the one of a kind of stage, by stage; empty before the first build."""
    paths = locks() if kind is None else [folder(kind) / "dvc.lock"]
    return {name: entry for path in paths for name, entry in _stages(path).items()}


def _stages(path: Path) -> dict[str, Any]:
    return stages_of(path.read_text(encoding="utf-8")) if path.exists() else {}


def stages_of(text: str) -> dict[str, Any]:
    """The `stages` of a dvc.yaml or dvc.lock."""
    loaded = parse_yaml(text)
    stages = loaded.get("stages") if isinstance(loaded, dict) else None
    return stages if isinstance(stages, dict) else {}
