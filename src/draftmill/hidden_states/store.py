"""What training reads: build/hidden_states/<dataset>/, memory-mapped; and the care of the kept shards.

Reader(folder).read(shard, offset, length) -> aux [T, L*H], last [T, H] (before the final norm)
verify(folder)     full check of every checksum
adopt(folder)      replace the kept copy of a shard by a link to the one DVC has stored
collect(used)      delete kept shards that nothing uses
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftmill.errors import DataError
from draftmill.hidden_states.shards import DTYPES, file_digest, torch_file
from draftmill.workspace import keep


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """manifest.json: `layers` are ascending hidden_states indices, `shards` maps a shard to its parts and tokens."""

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


def load_manifest(folder: Path) -> Manifest:
    """The manifest of an output folder. Raises DataError if it is missing or not one."""
    path = folder / "manifest.json"
    try:
        fields = json.loads(path.read_bytes())
        return Manifest(**{**fields, "layers": tuple(fields["layers"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"the hidden states are not complete ({error})", file=path, fix=f"dvc repro hidden_states@{folder.name}"
        ) from None


class Reader:
    """Hidden states of one dataset; cheap to make, opens shards as they are asked for, safe to send to a worker.

    `layers` chooses and orders the columns of aux; the default is all of the manifest's.
    Raises DataError for a file that is missing or has the wrong size, or a layer that was not captured.
    """

    def __init__(self, folder: Path | str, layers: Sequence[int] | None = None) -> None:
        self.folder = Path(folder)
        self.manifest = load_manifest(self.folder)
        self.layers = tuple(self.manifest.layers if layers is None else layers)
        absent = sorted(set(self.layers) - set(self.manifest.layers))
        if absent:
            raise DataError(
                f"layers {absent} were not captured; there are {list(self.manifest.layers)}",
                file=self.folder / "manifest.json",
                fix="name the drafter in states.for, or the layers in states.layers, and run dvc repro",
            )
        for shard in self.manifest.shards.values():
            for part in shard["parts"]:
                self._check_size(part)
        self._open: dict[str, tuple[list[tuple[Tensor, slice]], Tensor, Tensor]] = {}

    def __reduce__(self) -> tuple[type[Reader], tuple[Path, tuple[int, ...]]]:
        return Reader, (self.folder, self.layers)

    def _check_size(self, part: dict[str, Any]) -> None:
        path = self.folder / part["file"]
        size = path.stat().st_size if path.exists() else None
        if size != part["bytes"]:
            found = "nothing" if size is None else f"{size} bytes"
            raise DataError(
                f"this shard is damaged: the manifest says {part['bytes']} bytes",
                file=path,
                found=found,
                fix=f"dvc repro hidden_states@{self.folder.name} builds it again",
            )

    def _shard(self, shard: str) -> tuple[list[tuple[Tensor, slice]], Tensor, Tensor]:
        if shard not in self._open:
            if shard not in self.manifest.shards:
                raise DataError(f"no shard '{shard}' here", file=self.folder / "manifest.json", fix="dvc repro blend")
            places: dict[int, tuple[Tensor, slice]] = {}
            size = self.manifest.hidden_size
            for part in self.manifest.shards[shard]["parts"]:
                tensors = torch_file(self.folder / part["file"])
                for i, layer in enumerate(part["layers"]):
                    places.setdefault(layer, (tensors["aux"], slice(i * size, (i + 1) * size)))
                if part["last"]:
                    ends = tensors["last"], tensors["input_ids"]
            self._open[shard] = ([places[layer] for layer in self.layers], *ends)
        return self._open[shard]

    def read(self, shard: str, offset: int, length: int) -> tuple[Tensor, Tensor]:
        """The states of `length` tokens from `offset`: aux [T, L*H] in the order of `layers`, last [T, H].

        Both in the stored dtype; `last` is a view of the mapped file, not to be written to.
        """
        columns, last, _ = self._shard(shard)
        rows = slice(offset, offset + length)
        if rows.stop > len(last):
            raise DataError(f"shard '{shard}' ends before token {rows.stop}", file=self.folder, fix="dvc repro blend")
        if not columns:
            return torch.empty(length, 0, dtype=DTYPES[self.manifest.dtype]), last[rows]
        return torch.cat([aux[rows, part] for aux, part in columns], dim=1), last[rows]

    def ids(self, shard: str, offset: int, length: int) -> Tensor:
        """The token ids [T] int32 that these states were computed from."""
        return self._shard(shard)[2][offset : offset + length]


def verify(folder: Path) -> int:
    """Check every file of an output folder against the manifest's checksums; returns the bytes checked.

    Raises DataError naming the first damaged file.
    """
    reader = Reader(folder)
    total = 0
    for shard in reader.manifest.shards.values():
        for part in shard["parts"]:
            path = folder / part["file"]
            if file_digest(path) != part["sha256"]:
                fix = f"dvc repro hidden_states@{folder.name} builds it again"
                raise DataError("this shard is altered: its checksum differs", file=path, fix=fix)
            total += part["bytes"]
    return total


def adopt(folder: Path) -> int:
    """Make the kept copy of each shard a hard link to the output's file, which DVC has linked to its cache.

    Returns the bytes freed. DVC copies a hard-linked file once when it caches it; this undoes that, so each
    shard is stored once. Where files cannot be linked (two file systems) nothing happens.
    """
    manifest = load_manifest(folder)
    freed = 0
    for part in (part for shard in manifest.shards.values() for part in shard["parts"]):
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
    """Delete every kept shard file that is not in `used` (file names from manifests); returns the bytes freed."""
    freed = 0
    for path in sorted(keep("states").glob("*/shard-*.safetensors")):
        if path.name not in used:
            freed += path.stat().st_size
            path.with_suffix(".json").unlink(missing_ok=True)  # first: without it the file is not there for a build
            path.unlink()
    return freed
