"""The stage: load, hold out, drop duplicates, allocate, choose, shuffle, write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftmill.blend import Blend, Members, holdout, table, write
from draftmill.blend.allocate import Allocation, Supply, allocate
from draftmill.blend.contamination import drop_contaminated
from draftmill.blend.duplicates import drop_exact
from draftmill.blend.near import drop_near
from draftmill.blend.rows import Rows, load
from draftmill.blend.write import Chosen
from draftmill.console import say
from draftmill.errors import BuildError, DataError
from draftmill.files import digest, write_jsonl, write_metrics
from draftmill.hidden_states.manifest import adopt
from draftmill.lineage import SIZE, lineage, of_stage
from draftmill.workspace import BUILD, output

DEFAULT_YIELD = 0.99
_MADE_BY = ("extract", "generate", "tokenize")


def build(blend: Blend, members: Members, seed: int, expected: Mapping[str, float]) -> None:
    """Write build/blend/. `expected` is the yield that each dataset declares (expect.yield).

    Raises DataError for a dataset with too many empty masks, BuildError for a blend that cannot be met.
    """
    datasets = {name: load(name) for name in sorted(members.priority)}
    ruled = {name for names in members.rules.values() for name in names}
    for name in datasets:
        if name not in ruled:
            datasets[name].drop_all("no_rule")
        adopt(BUILD / "hidden_states" / name)
        _check_masks(datasets[name], expected.get(name, DEFAULT_YIELD))
        holdout.mark(datasets[name], blend.holdout)
    if blend.decontaminate:
        drop_contaminated(datasets, blend.decontaminate, members.against)
    drop_exact(datasets, members.priority)
    if blend.near_duplicates:
        drop_near(datasets, members.priority, blend.near_duplicates, seed)
    ranked = {name: rows.order(heldout=False, seed=seed) for name, rows in datasets.items()}
    supply = {name: Supply(datasets[name].trainable[order].tolist()) for name, order in ranked.items()}
    allocation = allocate(blend, members.rules, supply)
    taken = {
        name: _take(ranked[name], supply[name].rows_for(request.feasible, request.unit))
        for name, request in allocation.requests.items()
    }
    made = table.figures(datasets, allocation, supply, taken)
    say(table.text(made))
    _check(blend, allocation, taken)
    _leave(datasets, taken)
    by_dataset = {name: {stage: of_stage(stage, name) for stage in _MADE_BY} for name in datasets}
    made_from = lineage(declaration=digest([asdict(blend), seed], SIZE), datasets=by_dataset)
    _write(datasets, taken, made, seed, made_from)


def _check_masks(rows: Rows, expected: float) -> None:
    empty = sum(reason == "empty_mask" for reason in rows.reason)
    if empty > (1 - expected) * len(rows) + 1e-9:
        raise DataError(
            f"{empty} of {len(rows)} rows have no token that trains",
            file=f"conf/dataset/{rows.dataset}.yaml",
            key="mask",
            found=f"expect.yield allows {1 - expected:.1%}",
            fix="another mask policy, or a lower schema.expect.yield if that is meant",
        )


def _take(ranked: list[int], number: int) -> list[int]:
    """The first `number` rows by rank; beyond the last one it begins again at the first."""
    if not ranked:
        return []
    rounds, rest = divmod(number, len(ranked))
    return ranked * rounds + ranked[:rest]


def _check(blend: Blend, allocation: Allocation, taken: Mapping[str, list[int]]) -> None:
    for problem in allocation.problems:
        say(f"{'clipped' if blend.infeasible == 'clip' else 'infeasible'}: {problem}")
    if allocation.problems and blend.infeasible == "stop":
        fix = "a smaller size or take, a larger quota or max_repeat, or infeasible: clip"
        raise BuildError(
            "the blend asks for more than there is", file="conf/blend", found="; ".join(allocation.problems), fix=fix
        )
    if not any(taken.values()):
        raise BuildError("the blend has no row", file="conf/blend", key="allocate", fix="see the table above")


def _leave(datasets: Mapping[str, Rows], taken: Mapping[str, list[int]]) -> None:
    """Give every row that was not needed its reason."""
    for name, rows in datasets.items():
        chosen = set(taken.get(name, ()))
        for row in rows.inside(heldout=False):
            if row not in chosen:
                rows.drop(row, "not_selected")


def _write(
    datasets: Mapping[str, Rows],
    taken: Mapping[str, list[int]],
    made: Mapping[str, table.Figures],
    seed: int,
    made_from: Mapping[str, Any],
) -> None:
    folder = output("blend")
    ids = {name: rows.ids for name, rows in datasets.items()}
    train = [chosen for name, rows in taken.items() for chosen in _copies(name, rows)]
    held = [Chosen(name, row, 0) for name, rows in datasets.items() for row in rows.inside(heldout=True)]
    if not held:
        say("nothing is held out, so evaluate has no prompts: a larger blend.holdout.fraction, or more rows")
    totals = {}
    for side, chosen in (("train", train), ("heldout", held)):
        tokens = sum(int(datasets[c.dataset].tokens[c.row]) for c in chosen)
        trainable = sum(int(datasets[c.dataset].trainable[c.row]) for c in chosen)
        totals[side] = {"rows": len(chosen), "tokens": tokens, "trainable_tokens": trainable}
        write.write(folder / f"{side}.parquet", write.shuffled(chosen, ids, seed), tokens)
    table.write_table(folder / "table.csv", made)
    table.write_lengths(folder / "lengths.csv", datasets, taken)
    write_jsonl(folder / "dropped.jsonl", _drops(datasets))
    _metrics(folder, datasets, made, totals | {"lineage": made_from})


def _copies(name: str, rows: list[int]) -> list[Chosen]:
    seen: Counter[int] = Counter()
    made = []
    for row in rows:
        made.append(Chosen(name, row, seen[row]))
        seen[row] += 1
    return made


def _drops(datasets: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """The rows that were dropped for what they are, with what they matched; not those that were just not needed."""
    return [
        {key: value for key in drop.__slots__ if (value := getattr(drop, key)) is not None}
        for rows in datasets.values()
        for drop in rows.drops
        if drop.reason not in ("not_selected", "no_rule")
    ]


def _metrics(
    folder: Path, datasets: Mapping[str, Rows], made: Mapping[str, table.Figures], more: Mapping[str, Any]
) -> None:
    reasons = {name: Counter(reason for reason in rows.reason if reason) for name, rows in datasets.items()}
    dropped: Counter[str] = sum(reasons.values(), Counter())
    rows_in = sum(map(len, datasets.values()))
    described = {
        name: {**asdict(f), "dropped": dict(sorted(reasons[name].items()))} for name, f in sorted(made.items())
    }
    write_metrics(folder, rows_in, rows_in - dropped.total(), dropped, datasets=described, **more)
