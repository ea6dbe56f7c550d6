"""manifest.json of an output folder, and the care of the kept shards. No torch here: blend and gc stay fast.

load_manifest(folder)   what an output folder holds
adopt(folder)           replace the kept copy of a shard by a link to the one DVC has stored
collect(used)           delete kept shards that nothing uses
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftmill.errors import DataError
from draftmill.pipeline import repro
from draftmill.workspace import keep

ABANDONED_S = 3600.0


Ids = np.ndarray[Any, np.dtype[np.int32]]


def fingerprint(ids: Ids) -> str:
    """The identity of a row: 32 hex digits over its token ids (int32, little endian)."""
    return hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i4").tobytes(), digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, as hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """manifest.json: `layers` are ascending hidden_states indices, `shards` maps a shard to its parts and tokens."""

    version: str  # of draftmill, that wrote it
    dataset: str
    mode: str
    engine: str
    target: dict[str, Any]
    layers: tuple[int, ...]
    num_layers: int
    hidden_size: int
    dtype: str
    rows: int
    tokens: int
    bytes: int
    shards: dict[str, dict[str, Any]]

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every file: its name, layers, whether it has the last state, bytes and sha256."""
        for shard in self.shards.values():
            yield from shard["parts"]


def load_manifest(folder: Path) -> Manifest:
    """The manifest of an output folder. Raises DataError if it is missing or not one."""
    path = folder / "manifest.json"
    try:
        fields = json.loads(path.read_bytes())
        return Manifest(**{**fields, "layers": tuple(fields["layers"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"the hidden states are not complete ({error})", file=path, fix=repro("hidden_states", folder.name)
        ) from None


def distrust(path: Path) -> None:
    """Make DVC look at a damaged file again, instead of restoring the same damage from its cache.

    The file may be one with DVC's copy (a hard link), and DVC does not check what is write-protected and has its
    old time stamp. Once it looks, it drops its copy, and the stage runs.
    """
    with contextlib.suppress(OSError):
        path.chmod(0o644)
        os.utime(path)


def adopt(folder: Path) -> int:
    """Make the kept copy of each shard a hard link to the output's file, which DVC has linked to its cache.

    Returns the bytes freed. DVC copies a hard-linked file once when it caches it; this undoes that, so each
    shard is stored once. Where files cannot be linked (two file systems) nothing happens.
    """
    manifest = load_manifest(folder)
    freed = 0
    for part in manifest.parts():
        stored, kept = (folder / part["file"]).resolve(), _kept(manifest, part["file"])
        if kept.exists() and stored.exists() and not kept.samefile(stored):
            freed += _replace_by_link(kept, stored) if file_digest(stored) == part["sha256"] else 0
    return freed


def _kept(manifest: Manifest, file: str) -> Path:
    return keep("states", manifest.target["states"]) / file


def _replace_by_link(kept: Path, stored: Path) -> int:
    size, temporary = kept.stat().st_size, kept.with_name(f".{kept.name}.{os.getpid()}.part")
    try:
        os.link(stored, temporary)
    except OSError:
        return 0
    os.replace(temporary, kept)
    return size


def collect(used: set[str]) -> int:
    """Delete every kept shard file that is not in `used` (file names from manifests); returns the bytes freed.

    What killed builds left half-written goes too, once nobody has written to it for an hour.
    """
    freed = 0
    for path in sorted(keep("states").glob("*/.shard-*.part")):
        if time.time() - path.stat().st_mtime > ABANDONED_S:
            freed += path.stat().st_size
            path.unlink()
    for path in sorted(keep("states").glob("*/shard-*.safetensors")):
        if path.name not in used:
            freed += path.stat().st_size
            path.with_suffix(".json").unlink(missing_ok=True)  # first: without it the file is not there for a build
            path.unlink()
    return freed
