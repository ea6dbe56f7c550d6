"""evaluate: build/export and build/blend/heldout.parquet -> accept length and speed in build/evaluate."""

from draftmill.config import params, section
from draftmill.drafters import Drafter
from draftmill.errors import guard
from draftmill.evaluate import Evaluate, EvaluateRun


def main() -> None:
    """Decode the held-out prompts."""
    import torch

    from draftmill.evaluate.stage import evaluate
    from draftmill.target import Target

    run = params()["run"]
    if run["threads"]:
        torch.set_num_threads(run["threads"])
    evaluate(
        section("evaluate", Evaluate),
        section("drafter", Drafter),
        section("target", Target),
        params()["seed"],
        section("run.evaluate", EvaluateRun),
        run["device"],
        {name: dataset["tags"] for name, dataset in params()["datasets"].items()},
    )


if __name__ == "__main__":
    guard(main)
