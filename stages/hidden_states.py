"""hidden_states@d: build/tokenize/d/tokens.parquet -> build/hidden_states/d/."""

from __future__ import annotations

import sys

from draftmill.config import params, section
from draftmill.errors import guard
from draftmill.hidden_states import States, StatesRun
from draftmill.target import Target


def main() -> None:
    """Capture the target's hidden states of one dataset's rows."""
    import torch

    from draftmill.hidden_states import stage

    run = params()["run"]
    if run["threads"]:
        torch.set_num_threads(run["threads"])
    target = section("target", Target)
    work = stage.job(sys.argv[1], section("states", States), section("run.hidden_states", StatesRun), target)
    stage.build(work, lambda: stage.engine(work, target, run["device"]))


if __name__ == "__main__":
    guard(main)
