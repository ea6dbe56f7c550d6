"""The stage for one dataset: plan, check the disk, capture what is missing, link, describe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from draftmill import __version__
from draftmill.console import Progress, progress, say
from draftmill.errors import BuildError, ConfigError, DraftmillError
from draftmill.files import digest, parquet_writer, record_run, write_json
from draftmill.hidden_states import BYTES_PER_ID, BYTES_PER_VALUE, States, StatesRun, pack, recheck
from draftmill.hidden_states import plan as plans
from draftmill.hidden_states.engines import Batch, Engine, Local, Vllm
from draftmill.hidden_states.manifest import Ids
from draftmill.hidden_states.shards import Store
from draftmill.hidden_states.tokens import Rows
from draftmill.lineage import of_target
from draftmill.workspace import BUILD, keep, output

if TYPE_CHECKING:
    from draftmill.hidden_states.plan import Plan
    from draftmill.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One dataset's work: which layers of which target are kept where."""

    dataset: str
    states: States
    run: StatesRun
    target: dict[str, Any]  # the manifest's: name, revision, template, weights (digest), states (name of the store)
    num_layers: int
    hidden_size: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The wanted hidden_states indices, ascending."""
        return self.states.layer_set(self.num_layers)

    @property
    def bytes_per_token(self) -> int:
        """Stored bytes of one token."""
        return self.states.bytes_per_token(self.num_layers, self.hidden_size)


def job(dataset: str, states: States, run: StatesRun, target: Target) -> Job:
    """The Job of a dataset and a target. Raises ConfigError for layers the target does not have."""
    from draftmill.target import shape, weights_digest

    form, weights = shape(target), weights_digest(target)
    described = of_target(target) | {"weights": weights}
    described["states"] = digest([weights, states.dtype, states.engine], 8)
    made = Job(
        dataset=dataset, states=states, run=run, target=described, num_layers=form.layers, hidden_size=form.hidden_size
    )
    try:
        _ = made.layers
    except ValueError as error:
        raise ConfigError(str(error), file="conf/states/default.yaml", key="for") from None
    return made


def engine(work: Job, target: Target, device: str) -> Engine:
    """The engine that states.engine names, for this job's layers."""
    from draftmill.target import load_model, prepare

    if work.states.engine == "vllm":
        return Vllm(work.run, str(prepare(target)), sorted({*work.layers, work.num_layers}))
    return Local(load_model(target, device))


def build(work: Job, load: Callable[[], Engine]) -> None:
    """Write build/hidden_states/<dataset>/ from build/tokenize/<dataset>/tokens.parquet.

    `load` gives the engine; it is called only if a state is missing.
    """
    folder = output("hidden_states", work.dataset)
    for stale in folder.iterdir():
        stale.unlink()
    with Rows(BUILD / "tokenize" / work.dataset / "tokens.parquet") as rows:
        _build(work, rows, folder, load)


def _build(work: Job, rows: Rows, folder: Path, load: Callable[[], Engine]) -> None:
    started = time.monotonic()
    store = Store(keep("states", work.target["states"]))
    if work.states.mode == "online":
        _finish(work, rows, folder, store, plans.Plan(shards={}))
        say(f"{work.dataset}: online, {len(rows.names)} rows; training computes their states")
        return
    chosen = _plan(work, rows, store)
    gaps = [gap for shard in chosen.shards if (gap := _gap(work, rows, store, chosen, shard))]
    if gaps:
        check_disk(work, gaps, store.folder)
        engine = load()
        _capture(work, rows, store, chosen, gaps, engine)
    _finish(work, rows, folder, store, chosen)
    if gaps and work.run.recheck_rows:
        _recheck(work, folder, engine)
    captured = sum(name in rows.lengths for gap in gaps for name in chosen.shards[gap.shard])
    reused = len(rows.lengths) - captured
    record_run("hidden_states", work.dataset, captured=captured, reused=reused, seconds=time.monotonic() - started)
    say(f"{work.dataset}: {captured} rows captured, {reused} reused")


def _plan(work: Job, rows: Rows, store: Store) -> Plan:
    """The plan, made again until every kept shard it counts on has proved whole."""
    max_tokens = max(1, int(work.states.shard_gb * 1e9) // work.bytes_per_token)
    while True:
        chosen = plans.make(rows.lengths, store, max_tokens)
        if not store.drop_damaged(chosen.shards):
            return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """What one shard of the plan lacks in the store."""

    shard: str
    layers: tuple[int, ...]
    last: bool
    tokens: int


def _gap(work: Job, rows: Rows, store: Store, plan: Plan, shard: str) -> Gap | None:
    layers = tuple(layer for layer in work.layers if layer not in store.layers(shard))
    last = not store.has_last(shard)
    tokens = sum(map(len, _ids(rows, store, plan, shard))) if layers or last else 0
    return Gap(shard=shard, layers=layers, last=last, tokens=tokens) if layers or last else None


def _ids(rows: Rows, store: Store, plan: Plan, shard: str) -> list[Ids]:
    if shard in store.parts:  # it may hold rows that are not wanted any more, but its own ids are there
        return store.ids(shard)
    return [rows.ids(name) for name in plan.shards[shard]]


def check_disk(work: Job, gaps: list[Gap], folder: Path) -> None:
    """Print what will be written and what is free; BuildError if it cannot fit.

    DVC copies each new file once into its cache, until blend adopts it, so twice the size must be free.
    """
    value = work.hidden_size * BYTES_PER_VALUE[work.states.dtype]
    needed = sum(gap.tokens * (BYTES_PER_ID + value * (len(gap.layers) + gap.last)) for gap in gaps)
    free = shutil.disk_usage(folder).free
    say(
        f"{work.dataset}: {work.bytes_per_token / 1024:.1f} KiB a token, {size(needed)} to write "
        f"(twice while DVC takes its copy), {size(free)} free"
    )
    if 2 * needed > free:
        raise BuildError(
            f"the hidden states of {work.dataset} do not fit on the disk",
            file=folder,
            found=f"{size(2 * needed)} needed, {size(free)} free",
            fix="a smaller quota, states.mode: online, fewer layers in states.for, `draftmill gc`, or a larger disk",
        )


def size(count: float) -> str:
    """A number of bytes with a decimal unit: 1.5 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _capture(work: Job, rows: Rows, store: Store, plan: Plan, gaps: list[Gap], engine: Engine) -> None:
    """Compute and write what is missing, shard by shard; each is kept as soon as it is whole."""
    with progress(f"hidden states of {work.dataset}", sum(gap.tokens for gap in gaps), "tokens") as shown:
        for gap in gaps:
            wanted = sorted({*gap.layers, *([work.num_layers] if gap.last else [])})
            with engine.open(wanted) as batch:
                _capture_shard(work, store, batch, _ids(rows, store, plan, gap.shard), gap, shown)


def _capture_shard(work: Job, store: Store, batch: Batch, ids: list[Ids], gap: Gap, shown: Progress) -> None:
    lengths = [len(row) for row in ids]
    ends = np.cumsum([0, *lengths]).tolist()

    def fill(aux: Tensor, last: Tensor | None) -> None:
        for chosen in pack.batches(lengths, work.run.batch_tokens):
            found = {layer: states.to(aux.dtype).cpu() for layer, states in batch([ids[i] for i in chosen]).items()}
            joined = torch.cat([found[layer] for layer in gap.layers], dim=-1) if gap.layers else None
            for row, i in enumerate(chosen):
                place, length = slice(ends[i], ends[i + 1]), lengths[i]
                if joined is not None:
                    aux[place] = joined[row, :length]
                if last is not None:
                    last[place] = found[work.num_layers][row, :length]
                shown.advance(length)

    store.write(ids, gap.layers, gap.last, hidden_size=work.hidden_size, dtype=work.states.dtype, fill=fill)


def _recheck(work: Job, folder: Path, engine: Engine) -> None:
    """Compute a few rows again, new or reused; without a match the output is not complete."""
    try:
        deviations = recheck.sampled(folder, engine, work.run.recheck_rows)
        worst = recheck.check(deviations, keep("states", work.target["states"]))
    except DraftmillError:
        (folder / "manifest.json").unlink()
        raise
    say(f"{work.dataset}: {work.run.recheck_rows} rows computed again, relative distance at most {worst:.1g}")


def _finish(work: Job, rows: Rows, folder: Path, store: Store, plan: Plan) -> None:
    """Links, index.parquet (by id), and manifest.json last."""
    places = plans.locations(plan, rows.lengths, store)
    shards: dict[str, dict[str, Any]] = {}
    for shard in sorted(plan.shards):
        parts = store.serving(shard, work.layers)
        for part in parts:
            store.link(part, folder)
        described = [
            {"file": p.file, "layers": list(p.layers), "last": p.last, "bytes": p.bytes, "sha256": p.sha256}
            for p in parts
        ]
        shards[shard] = {"tokens": parts[0].tokens, "parts": described}
    _write_index(folder / "index.parquet", rows, places)
    manifest = {
        "version": __version__,
        "dataset": work.dataset,
        "mode": work.states.mode,
        "engine": work.states.engine,
        "target": work.target,
        "layers": list(work.layers),
        "num_layers": work.num_layers,
        "hidden_size": work.hidden_size,
        "dtype": work.states.dtype,
        "rows": len(rows.names),
        "tokens": sum(rows.lengths[name] for _, name in rows.names),
        "bytes": sum(part["bytes"] for shard in shards.values() for part in shard["parts"]),
        "shards": shards,
    }
    write_json(folder / "manifest.json", manifest)


def _write_index(path: Path, rows: Rows, places: dict[str, tuple[str, int, int]]) -> None:
    import pyarrow as pa

    found = [places.get(name, (None, 0, rows.lengths[name])) for _, name in rows.names]
    columns = {
        "id": pa.array([row for row, _ in rows.names], pa.string()),
        "shard": pa.array([shard for shard, _, _ in found], pa.string()),
        "offset": pa.array([offset for _, offset, _ in found], pa.int64()),
        "length": pa.array([length for _, _, length in found], pa.int32()),
        "fingerprint": pa.array([name for _, name in rows.names], pa.string()),
    }
    table = pa.table(columns)
    with parquet_writer(path, table.schema) as writer:
        writer.write_table(table)
