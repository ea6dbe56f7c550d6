"""The file of one shard, and the store of finished ones under .draftmill/states/<target and dtype>/.

A shard is a fixed list of rows, named by it. Its states may lie in several parts, one file each: a drafter
with further layers adds a part and leaves the first one as it is. Each part carries its token ids,
so that it can be checked and extended without the dataset it came from.

    shard-<rows>-<layers>.safetensors   aux [T, L*H], last [T, H] (if the part has it), input_ids [T] int32,
                                        ends [N] int64 (of the rows, in tokens), sums [N] int64 (see row_sum)
    shard-<rows>-<layers>.json          the same part's rows, layers and checksum; written last: there means done
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftmill.console import say
from draftmill.errors import DataError
from draftmill.files import digest, replacing, write_json
from draftmill.hidden_states.manifest import Ids, file_digest, fingerprint

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_SAFETENSORS = {torch.int32: "I32", torch.int64: "I64", torch.bfloat16: "BF16", torch.float32: "F32"}

ROW = ("aux", "last", "input_ids")  # the tensors that a row's checksum is about


def shard_name(key: str, fingerprints: Iterable[str]) -> str:
    """The name of the shard that holds exactly these rows in this order, in the store named `key`."""
    return f"shard-{digest([key, *fingerprints], 8)}"


def row_sum(*tensors: Tensor) -> int:
    """A checksum of one row: the sum of its bytes as 64-bit words, modulo 2**63.

    Training checks it at every read, so it must cost no more than the read; a CRC would take most of the time.
    """
    total = 0
    for tensor in tensors:
        raw = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
        words = raw[: raw.size // 8 * 8].view(np.uint64)
        total += int(np.add.reduce(words, dtype=np.uint64)) + int.from_bytes(raw[words.nbytes :].tobytes(), "little")
    return total % 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One file of a shard. `rows` are (fingerprint, length) in the order of the file."""

    file: str
    shard: str
    rows: tuple[tuple[str, int], ...]
    layers: tuple[int, ...]
    last: bool
    dtype: str
    hidden_size: int
    bytes: int
    sha256: str

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(length for _, length in self.rows)


class Store:
    """Finished shards of one target and dtype. Reads the descriptions of all parts when made."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, folder.name
        self.parts: dict[str, list[Part]] = {}
        for path in sorted(folder.glob("shard-*.json")):
            part = _load(path)
            if part is None:
                say(f"{path} cannot be read, and is not used")
            elif part.shard == shard_name(self.key, (name for name, _ in part.rows)):
                self._add(part)
            else:
                say(f"{path} is of another store, and is not used")

    def _add(self, part: Part) -> None:
        self.parts.setdefault(part.shard, []).append(part)

    def layers(self, shard: str) -> set[int]:
        """The layers that the parts of a shard hold."""
        return {layer for part in self.parts.get(shard, []) for layer in part.layers}

    def has_last(self, shard: str) -> bool:
        """Whether a part of the shard holds the last state."""
        return any(part.last for part in self.parts.get(shard, []))

    def serving(self, shard: str, layers: Iterable[int]) -> list[Part]:
        """The parts that together hold these layers and the last state; a part that adds nothing is left out."""
        chosen, lacking, last = [], set(layers), True
        for part in self.parts[shard]:
            if lacking & set(part.layers) or (last and part.last):
                chosen.append(part)
                lacking -= set(part.layers)
                last = last and not part.last
        return chosen

    def rows(self, shard: str) -> tuple[tuple[str, int], ...]:
        """(fingerprint, length) of the shard's rows in order."""
        return self.parts[shard][0].rows

    def ids(self, shard: str) -> list[Ids]:
        """The token ids of the shard's rows, from its first part."""
        _, tensors = open_file(self.folder / self.parts[shard][0].file)
        ends = np.cumsum([length for _, length in self.rows(shard)])
        return np.split(tensors["input_ids"].numpy(), ends[:-1])

    def damage(self, part: Part) -> str | None:
        """What is wrong with a part's file, in words; None if its checksum holds."""
        path = self.folder / part.file
        if not path.exists():
            return "is missing"
        size = path.stat().st_size
        if size != part.bytes:
            return f"has {size} bytes instead of {part.bytes}"
        return None if file_digest(path) == part.sha256 else "is altered: its checksum differs"

    def drop_damaged(self, shards: Iterable[str]) -> list[str]:
        """Check the files of some shards; damaged parts are named, removed, and returned."""
        dropped = []
        for shard in sorted(set(shards) & set(self.parts)):
            for part in list(self.parts[shard]):
                if (wrong := self.damage(part)) is not None:
                    say(f"{self.folder / part.file} {wrong}; it is built again")
                    self.remove(part)
                    dropped.append(part.file)
        return dropped

    def remove(self, part: Part) -> int:
        """Delete a part (its description first); returns the bytes of its file."""
        path = self.folder / part.file
        path.with_suffix(".json").unlink(missing_ok=True)
        size = path.stat().st_size if path.exists() else 0
        path.unlink(missing_ok=True)
        self.parts[part.shard].remove(part)
        if not self.parts[part.shard]:
            del self.parts[part.shard]
        return size

    def write(
        self,
        rows: Sequence[Ids],
        layers: Sequence[int],
        last: bool,
        *,
        hidden_size: int,
        dtype: str,
        fill: Callable[[Tensor, Tensor | None], None],
    ) -> Part:
        """Write a part of the shard that holds `rows`; the file is mapped, so memory does not grow with it.

        `fill(aux, last)` writes the states into aux [T, L*H] and last [T, H] (None if the part has none).
        """
        described = tuple((fingerprint(ids), len(ids)) for ids in rows)
        shard = shard_name(self.key, (name for name, _ in described))
        name = f"{shard}-{digest([list(layers), last], 4)}"
        path = self.folder / f"{name}.safetensors"
        shapes = _shapes(described, len(layers) * hidden_size, hidden_size if last else 0, DTYPES[dtype])
        with replacing(path) as temporary:
            metadata = {"store": self.key, "layers": json.dumps(list(layers))}
            _write_file(temporary, rows, shapes, metadata, lambda aux, end: fill(aux, end if last else None))
            size, checksum = temporary.stat().st_size, file_digest(temporary)
        part = Part(
            file=path.name,
            shard=shard,
            rows=described,
            layers=tuple(layers),
            last=last,
            dtype=dtype,
            hidden_size=hidden_size,
            bytes=size,
            sha256=checksum,
        )
        write_json(path.with_suffix(".json"), asdict(part))
        self._add(part)
        return part

    def link(self, part: Part, folder: Path) -> None:
        """Hard-link a part's file into an output folder; copied where the file system cannot."""
        target = folder / part.file
        try:
            os.link(self.folder / part.file, target)
        except OSError:
            shutil.copyfile(self.folder / part.file, target)


def _shapes(
    rows: Sequence[tuple[str, int]], aux: int, last: int, dtype: torch.dtype
) -> dict[str, tuple[torch.dtype, list[int]]]:
    """The tensors of a part, large ones first, so that they are aligned."""
    tokens = sum(length for _, length in rows)
    large = {"aux": (dtype, [tokens, aux]), "last": (dtype, [tokens, last])}
    small = {"ends": (torch.int64, [len(rows)]), "sums": (torch.int64, [len(rows)])}
    return large | small | {"input_ids": (torch.int32, [tokens])}


def _write_file(
    path: Path,
    rows: Sequence[Ids],
    shapes: dict[str, tuple[torch.dtype, list[int]]],
    metadata: dict[str, str],
    fill: Callable[[Tensor, Tensor], None],
) -> None:
    """Everything in a part's file; the map is gone afterwards, so that the file can be hashed and moved."""
    tensors = _create(path, shapes, metadata)
    tensors["input_ids"].copy_(torch.from_numpy(np.concatenate(rows)))
    tensors["ends"].copy_(torch.tensor([len(ids) for ids in rows]).cumsum(0))
    fill(tensors["aux"], tensors["last"])
    _sum_rows(tensors)


def _sum_rows(tensors: dict[str, Tensor]) -> None:
    start = 0
    for i, end in enumerate(tensors["ends"].tolist()):
        tensors["sums"][i] = row_sum(*(tensors[name][start:end] for name in ROW))
        start = end


def _load(path: Path) -> Part | None:
    try:
        fields = json.loads(path.read_bytes())
        rows = tuple((name, length) for name, length in fields.pop("rows"))
        return Part(rows=rows, layers=tuple(fields.pop("layers")), **fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _create(
    path: Path, shapes: dict[str, tuple[torch.dtype, list[int]]], metadata: dict[str, str]
) -> dict[str, Tensor]:
    """A safetensors file of zeros, mapped writable: 8 bytes of header length, the JSON header, the data in order."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + int(np.prod(shape)) * dtype.itemsize
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data to begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        # Reserved now: a full disk is an error here, and would kill the process at a write to the mapped file.
        os.posix_fallocate(file.fileno(), 0, 8 + len(text) + end)
    mapped = np.memmap(path, mode="r+")
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        offset = 8 + len(text) + header[name]["data_offsets"][0]
        count = int(np.prod(shape))
        tensors[name] = torch.empty(shape, dtype=dtype)
        if count:  # frombuffer refuses an empty stretch
            tensors[name] = torch.frombuffer(mapped.data, dtype=dtype, count=count, offset=offset).view(shape)
    return tensors


def open_file(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a safetensors file, mapped: nothing is read until it is used.

    Raises DataError for a file that is not one.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot be read as safetensors: {error}", file=path) from None
