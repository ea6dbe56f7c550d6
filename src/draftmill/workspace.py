"""Where things are, seen from the root of a project (the working directory of every stage).

build/<stage>/<dataset>/    outputs, deleted by DVC before the stage runs again
.draftmill/<stage>/…        unfinished or reusable work: never deleted by a build, clean or branch switch
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

BUILD = Path("build")
PARAMS = Path("params.yaml")
_SCRATCH = ".scratch"


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


@contextmanager
def scratch(stage: str, name: str) -> Iterator[Path]:
    """A folder in .draftmill/<stage>/ that lives as long as the work in it.

    What killed processes left there goes first: a folder that is in use is locked, and locks end with their process.
    """
    home = keep(stage)
    with ExitStack() as work:
        with _locked(home):  # nobody takes the new folder for one that was left
            _remove_left(home)
            folder = tempfile.TemporaryDirectory(dir=home, prefix=f"{name}.", suffix=_SCRATCH)
            path = Path(work.enter_context(folder))
            work.enter_context(_locked(path))
        yield path


def _remove_left(home: Path) -> None:
    for left in home.glob(f"*{_SCRATCH}"):
        try:
            with _locked(left, wait=False):
                shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            continue


@contextmanager
def _locked(folder: Path, wait: bool = True) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
