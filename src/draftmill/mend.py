"""mend: what a kill -9 left half-written in DVC's own files, which DVC then refuses to read.

DVC writes its lock files in place: dvc.lock after every stage, .dvc/tmp/rwlock several times a stage. Either may go
without loss: the run-cache knows the stages that a lost dvc.lock named, and nobody holds what a dead process held.
"""

from __future__ import annotations

import json
from pathlib import Path

from draftmill import pipeline
from draftmill.files import parse_yaml

_TMP = Path(".dvc/tmp")


def mend() -> list[Path]:
    """Delete the files that DVC cannot read, unless a build is at work; returns them."""
    from dvc.lock import LockError, make_lock

    if not _TMP.is_dir():
        return []
    try:
        with make_lock(str(_TMP / "lock"), tmp_dir=str(_TMP)):
            broken = [path for path in (_TMP / "rwlock", *pipeline.locks()) if path.exists() and not _readable(path)]
            for path in broken:
                path.unlink()
    except LockError:
        return []
    return broken


def _readable(path: Path) -> bool:
    import yaml
    from dvc.rwlock import SCHEMA
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.name == "rwlock":
            SCHEMA(json.loads(text))
        else:
            COMPILED_LOCKFILE_SCHEMA(parse_yaml(text))
    except (ValueError, Invalid, yaml.YAMLError):
        return False
    return True
