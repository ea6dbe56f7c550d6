"""train: build/blend and build/hidden_states -> build/train/{drafter,metrics}; on several GPUs under torchrun."""

from draftmill.config import params, section
from draftmill.drafters import Drafter
from draftmill.errors import guard
from draftmill.train import TrainRun


def main() -> None:
    import torch

    from draftmill.target import Target
    from draftmill.train.stage import train

    run = params()["run"]
    if run.get("threads"):
        torch.set_num_threads(run["threads"])
    train(
        section("drafter", Drafter),
        section("target", Target),
        params()["seed"],
        section("run.train", TrainRun),
        run["device"],
    )


if __name__ == "__main__":
    guard(main)
