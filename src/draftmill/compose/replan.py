"""Building the datasets that were added after DVC made its plan.

A stage cannot add stages to the run it is in, but DVC releases its lock while a command runs: a child `dvc repro`
builds exactly the stages that the plan does not have, and nobody else holds them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from draftmill.compose.ensure import ADDED
from draftmill.config import params
from draftmill.console import say
from draftmill.errors import BuildError
from draftmill.pipeline import address


def build_added() -> None:
    """Run the stages of the datasets noted as added, each once; raises BuildError if one of them fails.

    The note is taken away first: the next run's plan has these stages of its own.
    """
    names = json.loads(ADDED.read_text(encoding="utf-8")) if ADDED.exists() else []
    ADDED.unlink(missing_ok=True)
    composed = params()
    answered, known = composed["answered"], composed["inputs"]
    lasts = {name: "hidden_states" if name in answered else "extract" for name in names if name in known}
    targets = [address(stage, name) for name, stage in lasts.items()]
    if not targets:
        return
    say(f"building what was added: {', '.join(lasts)}")
    if run_dvc("repro", "--keep-going", *targets) != 0:
        raise BuildError(f"not all of {', '.join(names)} could be built", fix="see the messages above, then run again")


def run_dvc(*arguments: str) -> int:
    """Run this interpreter's `dvc` with `arguments` and return its exit code."""
    folder = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run([sys.executable, "-m", "dvc", *arguments], env=environment, check=False).returncode
