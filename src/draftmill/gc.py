"""gc: give back disk that nothing uses any more. A build, a clean or a branch switch never deletes any of it.

Goes: outputs of datasets that were removed, and their entries in dvc.lock; stored hidden states that no manifest of
the workspace or of a kept revision names; with `checkpoints`, those of trainings that were not finished. Answers
stay: they were paid for. DVC's own cache is collected by `dvc gc`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from draftmill import pipeline
from draftmill.config import params
from draftmill.errors import UsageError
from draftmill.files import write_text
from draftmill.hidden_states import manifest
from draftmill.workspace import BUILD, keep

_LOCK = pipeline.folder("hidden_states") / "dvc.lock"
_CACHE = Path(".dvc/cache/files/md5")
_STAGES = {"extract": "inputs", "generate": "answered", "tokenize": "answered", "hidden_states": "answered"}


def collect(
    revisions: Sequence[str] = (), *, checkpoints: bool = False, dry_run: bool = False
) -> list[tuple[str, int]]:
    """What was (or would be) deleted, each with its bytes. `revisions` are git revisions whose states are kept too."""
    params()  # outside a project there is nothing to give back: say so
    found = [(folder, _bytes(folder)) for folder in _removed_outputs()]
    if checkpoints:
        found += [(folder, _bytes(folder)) for folder in sorted(keep("train").iterdir()) if folder.is_dir()]
    if not dry_run:
        for folder, _ in found:
            shutil.rmtree(folder)
        _forget_removed()
    states = _states({name for revision in revisions for name in _used_at(revision)} | set(_used_here()), dry_run)
    return [*((str(folder), size) for folder, size in found), *([(str(keep("states")), states)] if states else [])]


def _removed_outputs() -> Iterator[Path]:
    """The folders build/<stage>/<dataset> of datasets that have no such stage now."""
    for stage, names in _STAGES.items():
        folder = BUILD / stage
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir() and path.name not in params()[names]:
                yield path


def _forget_removed() -> None:
    """Take the stages of removed datasets out of their dvc.lock: DVC rewrites the whole file after every stage."""
    for kind, names in _STAGES.items():
        path = pipeline.folder(kind) / "dvc.lock"
        stages = pipeline.stages_of(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept = {stage: entry for stage, entry in stages.items() if stage.partition("@")[2] in params()[names]}
        if kept != stages:
            lock = {"schema": "2.0", "stages": kept}
            write_text(path, yaml.safe_dump(lock, sort_keys=False, allow_unicode=True, width=10**9))


def _states(used: set[str], dry_run: bool) -> int:
    if not dry_run:
        return manifest.collect(used)
    paths = (path for path in keep("states").glob("*/shard-*.safetensors") if path.name not in used)
    return sum(path.stat().st_size for path in paths)


def _used_here() -> Iterator[str]:
    for path in sorted((BUILD / "hidden_states").glob("*/manifest.json")):
        yield from _files(json.loads(path.read_text(encoding="utf-8")))


def _used_at(revision: str) -> Iterator[str]:
    """The shard files that a revision's manifests name, read from DVC's cache; raises UsageError if not there."""
    done = subprocess.run(["git", "show", f"{revision}:{_LOCK}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"no {_LOCK} at the revision '{revision}'", found=done.stderr.strip())
    for stage in pipeline.stages_of(done.stdout).values():
        for out in stage.get("outs", ()):
            found = _manifest(out["md5"])
            if found is None:
                fix = "dvc pull, or leave this revision out"
                raise UsageError(f"the manifest of {out['path']} at {revision} is not in DVC's cache", fix=fix)
            yield from _files(found)


def _manifest(folder_md5: str) -> dict[str, Any] | None:
    listing = _cached(folder_md5)
    if not listing.exists():
        return None
    entries = json.loads(listing.read_text(encoding="utf-8"))
    path = next((_cached(entry["md5"]) for entry in entries if entry["relpath"] == "manifest.json"), None)
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None


def _cached(md5: str) -> Path:
    return _CACHE / md5[:2] / md5[2:]


def _files(content: dict[str, Any]) -> Iterator[str]:
    return (part["file"] for shard in content["shards"].values() for part in shard["parts"])


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
