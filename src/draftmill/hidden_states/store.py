"""What training reads: build/hidden_states/<dataset>/, memory-mapped.

Reader(folder).read(shard, offset, length) -> aux [T, L*H], last [T, H] (before the final norm)
verify(folder)   full check of every checksum
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draftmill.errors import DataError
from draftmill.hidden_states.manifest import Manifest, distrust, file_digest, load_manifest
from draftmill.hidden_states.shards import DTYPES, ROW, open_file, row_sum
from draftmill.pipeline import repro


class _Part(NamedTuple):
    path: Path
    tensors: dict[str, Tensor]
    rows: dict[tuple[int, int], int]  # (start, end) of a row -> its checksum


class _Shard(NamedTuple):
    columns: list[tuple[Tensor, slice]]  # for each wanted layer: a part's aux, and the layer's columns there
    whole: bool  # the columns are all of one aux, in order
    last: Tensor
    parts: list[_Part]


class Reader:
    """Hidden states of one dataset; cheap to make, opens shards as they are asked for, safe to send to a worker.

    `layers` chooses and orders the columns of aux; the default is all of the manifest's. `weights` is the
    `weights_digest` of the target that training uses; states of another one are refused.
    Raises DataError for a file that is missing or has the wrong size, and for a layer that was not captured.
    """

    def __init__(self, folder: Path | str, layers: Sequence[int] | None = None, weights: str | None = None) -> None:
        self.folder, self.weights = Path(folder), weights
        self.manifest = load_manifest(self.folder)
        self.layers = tuple(self.manifest.layers if layers is None else layers)
        self._check_request()
        for part in self.manifest.parts():
            _check_size(self.folder, part)
        self._shards: dict[str, _Shard] = {}

    def __reduce__(self) -> tuple[type[Reader], tuple[Path, tuple[int, ...], str | None]]:
        return Reader, (self.folder, self.layers, self.weights)

    def _check_request(self) -> None:
        path, again = self.folder / "manifest.json", repro("hidden_states", self.folder.name)
        if self.weights not in (None, self.manifest.target["weights"]):
            found = f"states of {self.manifest.target['name']} ({self.manifest.target['weights'][:12]})"
            raise DataError("these are the hidden states of another target", file=path, found=found, fix=again)
        absent = sorted(set(self.layers) - set(self.manifest.layers))
        if absent:
            found = f"there are {list(self.manifest.layers)}"
            fix = f"name the drafter in states.for, or the layers in states.layers, then {again}"
            raise DataError(f"layers {absent} were not captured", file=path, found=found, fix=fix)

    def _open(self, shard: str) -> _Shard:
        if shard in self._shards:
            return self._shards[shard]
        if shard not in self.manifest.shards:
            raise DataError(f"no shard '{shard}' here", file=self.folder / "manifest.json", fix="dvc repro blend")
        parts = [_load(self.folder / part["file"], self.manifest) for part in self.manifest.shards[shard]["parts"]]
        self._shards[shard] = self._shard(shard, parts)
        return self._shards[shard]

    def _shard(self, shard: str, parts: list[_Part]) -> _Shard:
        places: dict[int, tuple[Tensor, slice]] = {}
        size = self.manifest.hidden_size
        for part, described in zip(parts, self.manifest.shards[shard]["parts"], strict=True):
            for i, layer in enumerate(described["layers"]):
                places.setdefault(layer, (part.tensors["aux"], slice(i * size, (i + 1) * size)))
            if described["last"]:
                last = part.tensors["last"]
        columns = [places[layer] for layer in self.layers]
        whole = [column for _, column in columns] == [slice(i * size, (i + 1) * size) for i in range(len(columns))]
        whole = whole and all(aux is columns[0][0] and aux.shape[1] == size * len(columns) for aux, _ in columns)
        return _Shard(columns, whole, last, parts)

    def read(self, shard: str, offset: int, length: int) -> tuple[Tensor, Tensor]:
        """The states of the row of `length` tokens at `offset`: aux [T, L*H] in the order of `layers`, last [T, H].

        Both in the stored dtype, and mostly views of the mapped file: not to be written to.
        Raises DataError if the row's checksum does not hold, or there is no row at that place.
        """
        columns, whole, last, parts = self._open(shard)
        rows = slice(offset, offset + length)
        for part in parts:
            _check_row(part, rows)
        if not columns:
            return torch.empty(length, 0, dtype=DTYPES[self.manifest.dtype]), last[rows]
        if whole:
            return columns[0][0][rows], last[rows]
        return torch.cat([aux[rows, column] for aux, column in columns], dim=1), last[rows]

    def ids(self, shard: str, offset: int, length: int) -> Tensor:
        """The token ids [T] int32 that these states were computed from."""
        return self._open(shard).parts[0].tensors["input_ids"][offset : offset + length]


def _check_row(part: _Part, rows: slice) -> None:
    wanted = part.rows.get((rows.start, rows.stop))
    if wanted is None:
        raise DataError(f"has no row at {rows.start} to {rows.stop}", file=part.path, fix="dvc repro blend")
    if row_sum(*(part.tensors[name][rows] for name in ROW)) != wanted:
        raise _damaged(f"this shard is altered: the checksum of the row at {rows.start} differs", part.path)


def _check_size(folder: Path, part: dict[str, Any]) -> None:
    path = folder / part["file"]
    size = path.stat().st_size if path.exists() else None
    if size != part["bytes"]:
        found = "no file" if size is None else f"{size} bytes"
        raise _damaged(f"this shard is damaged: it should have {part['bytes']} bytes", path, found)


def _load(path: Path, manifest: Manifest) -> _Part:
    metadata, tensors = open_file(path)
    if metadata.get("store") != manifest.target["states"]:
        raise _damaged("this shard is of another target or dtype", path, f"store {metadata.get('store')}")
    ends = tensors["ends"].tolist()
    return _Part(path, tensors, dict(zip(zip([0, *ends], ends, strict=False), tensors["sums"].tolist(), strict=True)))


def _damaged(message: str, path: Path, found: str | None = None) -> DataError:
    distrust(path)
    return DataError(message, file=path, found=found, fix=f"{repro('hidden_states', path.parent.name)} builds it again")


def verify(folder: Path) -> int:
    """Check every file of an output folder against the manifest's checksums; returns the bytes checked.

    Raises DataError naming the first damaged file.
    """
    manifest, total = load_manifest(folder), 0
    for part in manifest.parts():
        _check_size(folder, part)
        _load(folder / part["file"], manifest)
        if file_digest(folder / part["file"]) != part["sha256"]:
            raise _damaged("this shard is altered: its checksum differs", folder / part["file"])
        total += part["bytes"]
    return total
