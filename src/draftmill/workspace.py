"""Where things are, seen from the root of a project (the working directory of every stage).

build/<stage>/<dataset>/    outputs, deleted by DVC before the stage runs again
.draftmill/<stage>/…        unfinished or reusable work: never deleted by a build, clean or branch switch
"""

from __future__ import annotations

import os
from pathlib import Path

BUILD = Path("build")
PARAMS = Path("params.yaml")


def keep(*parts: str) -> Path:
    """A path under the folder for kept work; made if missing (its parent if it has a suffix).

    The folder is .draftmill/ of the checkout, or the one DRAFTMILL_KEEP names: an experiment in a
    temporary checkout uses the main checkout's.
    """
    path = Path(os.environ.get("DRAFTMILL_KEEP", ".draftmill"), *parts)
    (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
    return path


def output(stage: str, dataset: str | None = None) -> Path:
    """The output folder of a stage, made if missing."""
    path = BUILD / stage / dataset if dataset else BUILD / stage
    path.mkdir(parents=True, exist_ok=True)
    return path
