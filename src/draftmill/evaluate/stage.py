"""The stage: every held-out prompt decoded plainly and with the drafter, the baselines replayed, figures written."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftmill.console import progress, say
from draftmill.drafters import Drafter
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends, read_ends
from draftmill.drafters.initialize import new_dflash, new_eagle3
from draftmill.drafters.vocabulary import ids_of
from draftmill.errors import BuildError
from draftmill.evaluate import Evaluate, EvaluateRun
from draftmill.evaluate.bench import Bench, Outcome, faults, spread
from draftmill.evaluate.figures import accept_length, acceptance, interval, rounded, seconds_per_token
from draftmill.evaluate.prompts import read_prompts
from draftmill.evaluate.proposers import PromptLookup, Proposer, proposer_of
from draftmill.evaluate.session import Live
from draftmill.export.load import load_export
from draftmill.files import replacing, write_json, write_jsonl
from draftmill.target import Target, load_model, prepare, renderer, shape
from draftmill.workspace import BUILD, output


def evaluate(
    settings: Evaluate,
    drafter: Drafter,
    target: Target,
    seed: int,
    run: EvaluateRun,
    device: str = "auto",
    tags: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The whole stage; returns what metrics.json holds. `tags` are those of each dataset.

    Raises BuildError if the drafter changes the text.
    """
    prompts = read_prompts(BUILD / "blend" / "heldout.parquet", settings, seed)
    model = load_model(target, device)
    trained = load_export(BUILD / "export")
    ends = read_ends(prepare(target), shape(target)).to(model.device)
    shown = renderer(target)
    bench = Bench(
        settings=settings,
        live=Live(model, trained.arch.layers),
        eos=tuple(shown.eos_ids),
        drafts=trained.arch.block_size - 1 if trained.arch.kind == "dflash" else settings.draft_tokens,
        drafter=proposer_of(trained, ends),
        untrained=_untrained(drafter, trained, ends, seed),
        lookup=PromptLookup(settings.lookup_ngram),
        seed=seed,
    )
    outcomes = []
    with progress("evaluate", len(prompts), "prompts") as bar:
        plain = spread(len(prompts), settings.plain_prompts)
        for number, prompt in enumerate(prompts):
            outcomes.append(bench.run(prompt, number in plain))
            bar.advance()
    metrics = summary(outcomes, settings, bench.drafts, seed, tags or {})
    write(output("evaluate"), outcomes, metrics, shown.decode, run)
    _report(metrics, outcomes, settings)
    return metrics


def _untrained(drafter: Drafter, trained: Eagle3 | DFlash, ends: Ends, seed: int) -> Proposer:
    """The same drafter as it was before its first step."""
    if isinstance(trained, DFlash):
        return proposer_of(new_dflash(trained.arch, seed), ends)
    return proposer_of(new_eagle3(drafter, trained.arch, ends, ids_of(trained.d2t), seed), ends)


def figures(outcomes: Sequence[Outcome], settings: Evaluate, drafts: int, seed: int) -> dict[str, Any]:
    """Figures of some prompts."""
    drafted = [one.drafted for one in outcomes]
    low, high = interval(drafted, settings.bootstrap, seed)
    both = [(one.plain, one.drafted) for one in outcomes if one.plain is not None]
    plain_s, drafted_s = seconds_per_token([p for p, _ in both]), seconds_per_token([d for _, d in both])
    wrong = len(faults(outcomes, settings.tie_margin))
    return {
        "accept_length": accept_length(drafted),
        "accept_length_low": low,
        "accept_length_high": high,
        "accept_length_untrained": accept_length([one.untrained for one in outcomes]),
        "accept_length_prompt_lookup": accept_length([one.lookup for one in outcomes]),
        "acceptance": acceptance(drafted, drafts),
        "speedup": plain_s / drafted_s if both and drafted_s else None,
        "prompts": len(outcomes),
        "tokens": sum(len(one.drafted.tokens) for one in outcomes),
        "lossless": wrong == 0,
        "ties": sum(one.place is not None for one in outcomes) - wrong,
    }


def summary(
    outcomes: Sequence[Outcome], settings: Evaluate, drafts: int, seed: int, tags: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """metrics.json: the figures over all prompts, and under `datasets` and `tags` those of each."""
    groups: dict[str, dict[str, list[Outcome]]] = {"datasets": {}, "tags": {}}
    for one in outcomes:
        groups["datasets"].setdefault(one.prompt.dataset, []).append(one)
        for tag in tags.get(one.prompt.dataset, ()):
            groups["tags"].setdefault(tag, []).append(one)
    whole = figures(outcomes, settings, drafts, seed)
    for key, members in groups.items():
        whole[key] = {name: figures(own, settings, drafts, seed) for name, own in sorted(members.items())}
    return dict(rounded(whole))


def write(
    folder: Path, outcomes: Sequence[Outcome], metrics: Mapping[str, Any], decode_ids: Any, run: EvaluateRun
) -> None:
    """Write per_dataset.csv, examples.jsonl, ties.jsonl, and metrics.json last."""
    columns = [key for key in metrics if key not in ("datasets", "tags", "acceptance")]
    with replacing(folder / "per_dataset.csv") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["dataset", *columns, *(f"acceptance_{i}" for i in range(len(metrics["acceptance"])))])
        for name, row in [("all", metrics), *metrics["datasets"].items()]:
            table.writerow([name, *(row[column] for column in columns), *row["acceptance"]])
    ties = [
        {"dataset": one.prompt.dataset, "id": one.prompt.id, "place": one.place, "margin": one.margin}
        for one in outcomes
        if one.place is not None
    ]
    write_jsonl(folder / "ties.jsonl", ties)
    write_jsonl(folder / "examples.jsonl", [_example(one, decode_ids) for one in outcomes[: run.examples]])
    write_json(folder / "metrics.json", metrics)


def _example(one: Outcome, decode_ids: Any) -> dict[str, Any]:
    """One decoded prompt: its text, and how many tokens each step gave."""
    return {
        "dataset": one.prompt.dataset,
        "id": one.prompt.id,
        "text": decode_ids(one.drafted.tokens),
        "steps": [accepted + 1 for accepted in one.drafted.steps],
        "accept_length": accept_length([one.drafted]),
    }


def _report(metrics: Mapping[str, Any], outcomes: Sequence[Outcome], settings: Evaluate) -> None:
    speed = (
        f"{metrics['speedup']:.2f} times the speed of plain decoding" if metrics["speedup"] else "speed not measured"
    )
    say(
        f"accept length {metrics['accept_length']:.2f} [{metrics['accept_length_low']:.2f}, "
        f"{metrics['accept_length_high']:.2f}] on {metrics['prompts']} held-out prompts; untrained "
        f"{metrics['accept_length_untrained']:.2f}, prompt lookup {metrics['accept_length_prompt_lookup']:.2f}; {speed}"
    )
    wrong = faults(outcomes, settings.tie_margin)
    if wrong:
        first = wrong[0]
        raise BuildError(
            f"speculative decoding changed the text of {len(wrong)} prompts, and no tie explains it",
            file=BUILD / "evaluate" / "ties.jsonl",
            found=f"first in {first.prompt.dataset}, row {first.prompt.id}, token {first.place}",
            fix="this is a fault of draftmill, or of a target whose numbers depend on the batch; please report it",
        )
