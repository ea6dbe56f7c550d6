"""The program: Hydra's multirun over DVC experiments. See the package for how it is called."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from draftmill.console import aligned, say
from draftmill.errors import BuildError, DraftmillError, UsageError, guard
from draftmill.sweep import compare
from draftmill.sweep.jobs import Result, Workspace, run_job
from draftmill.sweep.scaling import fit
from draftmill.workspace import BUILD

SIZES = (8, 4, 2, 1)
results: list[Result] = []
folder = Path("multirun")


@hydra.main(version_base=None, config_path=str(Path("conf").absolute()), config_name="config")
def job(_: DictConfig) -> float:
    """One job, whose accept length is what a sweeper optimizes. A failure is noted, and the sweep goes on."""
    global folder
    settings = HydraConfig.get()
    folder = Path(settings.sweep.dir)
    overrides = [str(override) for override in settings.overrides.task]
    try:
        result = run_job(overrides)
    except DraftmillError as error:
        result = Result(overrides=tuple(overrides), experiment="", metrics={}, error=str(error))
    results.append(result)
    note = " (from an earlier run)" if result.seen_before else ""
    say(f"{' '.join(overrides)}: accept length {result.accept_length:.3f}{note}")
    return result.accept_length


def size_overrides() -> list[str]:
    """The command line of the size sweep: fractions of the rows that the workspace's blend has now."""
    metrics = BUILD / "blend" / "metrics.json"
    if not metrics.exists():
        raise UsageError("there is no blend to take fractions of", file=metrics, fix="run `dvc repro` first")
    rows = int(json.loads(metrics.read_text(encoding="utf-8"))["train"]["rows"])
    sizes = ",".join(f"{{rows:{max(1, rows // part)}}}" for part in SIZES)
    return ["--multirun", f"blend.size={sizes}"]


def main() -> None:
    """Run all jobs, bring the workspace back, compare; raises BuildError if a job failed."""
    by_size = sys.argv[1:2] == ["size"]
    if by_size:
        sys.argv[1:2] = size_overrides()
    elif not {"--multirun", "-m"} & set(sys.argv):
        raise UsageError("a sweep needs --multirun and keys with several values", fix=__package__ or None)
    with Workspace():
        job()
    done = [result for result in results if result.error is None]
    curve = fit([result.rows or 1 for result in done], [result.accept_length for result in done]) if by_size else None
    compare.write(folder, results, curve)
    _show(curve)
    if failed := [result for result in results if result.error is not None]:
        lines = "\n".join(f"  {' '.join(result.overrides)}: {result.error}" for result in failed)
        raise BuildError(f"{len(failed)} of {len(results)} jobs failed:\n{lines}", fix="run the same command again")


def _show(curve: object) -> None:
    header, *lines = compare.table(results)
    say(aligned(header, lines))
    if curve is not None:
        say(f"fit: {curve}")
    say(f"written: {folder}/comparison.csv and comparison.html")


if __name__ == "__main__":
    guard(main)
