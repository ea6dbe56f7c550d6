"""One job of a sweep: a DVC experiment, and the record that keeps it from being run again."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftmill import pipeline
from draftmill.compose import tracked
from draftmill.compose.composition import composed
from draftmill.compose.replan import run_dvc
from draftmill.compose.validation import validate
from draftmill.files import digest, write_json
from draftmill.workspace import BUILD, keep


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of one job; `metrics` is build/evaluate/metrics.json, empty if it failed, and `error` says why."""

    overrides: tuple[str, ...]
    experiment: str
    metrics: Mapping[str, Any]
    rows: int | None = None
    error: str | None = None
    seen_before: bool = False

    @property
    def accept_length(self) -> float:
        """Mean tokens per forward pass of the target on held-out prompts; NaN for a failed job."""
        return float(self.metrics.get("accept_length", "nan"))


def run_job(overrides: Sequence[str]) -> Result:
    """Build the workspace with `overrides` as one DVC experiment, unless such a job is on record as finished."""
    composition = composed(overrides)
    validate(composition)
    fingerprint = _fingerprint(composition.values)
    record = keep("sweep") / f"{fingerprint}.json"
    if record.exists():
        known = json.loads(record.read_text(encoding="utf-8"))
        return Result(**known | {"overrides": tuple(overrides), "seen_before": True})
    name = f"sweep-{fingerprint[:12]}"
    _forget(name)
    settings = [argument for override in overrides for argument in ("--set-param", override)]
    if run_dvc("exp", "run", "--name", name, *settings) != 0:
        return Result(
            overrides=tuple(overrides), experiment=name, metrics={}, error="the build failed, see its messages"
        )
    result = Result(
        overrides=tuple(overrides), experiment=name, metrics=_json("evaluate"), rows=_json("blend")["train"]["rows"]
    )
    write_json(record, asdict(result))
    return result


def _forget(name: str) -> None:
    """Remove an experiment that has no record; `dvc exp run --force` would replace it, but build everything anew."""
    refs = subprocess.run(
        ["git", "for-each-ref", "--format=%(refname)", "refs/exps"], capture_output=True, text=True, check=False
    )
    if any(ref.endswith(f"/{name}") for ref in refs.stdout.split()):
        run_dvc("exp", "remove", name)


def _json(stage: str) -> dict[str, Any]:
    return json.loads((BUILD / stage / "metrics.json").read_text(encoding="utf-8"))


def _fingerprint(values: Mapping[str, Any]) -> str:
    """A digest of what decides a build: configuration without `run`, code, sizes and times of data files."""
    identity = {key: value for key, value in values.items() if key not in ("run", "conf_digest")}
    code = hashlib.sha256()
    for path in _files(Path("src"), Path("stages"), *(path.with_suffix(".yaml") for path in pipeline.locks())):
        if "__pycache__" not in path.parts:
            code.update(path.as_posix().encode() + path.read_bytes())
    inputs = [Path(path) for path in values["inputs"].values()]
    data = [(path.as_posix(), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in _files(*inputs)]
    return digest([identity, code.hexdigest(), data])


def _files(*paths: Path) -> Iterator[Path]:
    for path in paths:
        yield from sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]


class Workspace:
    """Remembers params.yaml, every dvc.lock and the outputs, and brings them back: `with Workspace(): …`."""

    FILES = (Path("params.yaml"), Path(".draftmill/compose/params.yaml"), *pipeline.locks())

    def __enter__(self) -> None:
        files = (*self.FILES, *tracked.FOLDER.glob("*.json"))
        self._before = {path: path.read_bytes() if path.exists() else None for path in files}

    def __exit__(self, *_: object) -> None:
        for path, content in self._before.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        if self._before[Path("dvc.lock")] is not None:
            run_dvc("checkout", "--quiet", "--force")
