"""kill -9 in the middle of the two long stages, then the same command again: finished work is not done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tinybuild import Space, copied, new

from draftmill.pipeline import address

PATIENCE_S = 120.0


def killed(space: Space, target: str, ready: Callable[[], bool], how: signal.Signals = signal.SIGKILL) -> bool:
    """Start `dvc repro target` and kill it with everything it started once `ready` holds; False if it ended first.

    SIGINT to the whole group is what Ctrl-C does.
    """
    building = subprocess.Popen(
        [str(space.python), "-m", "dvc", "repro", address(target)],
        cwd=space.root,
        env=space.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    give_up = time.monotonic() + PATIENCE_S
    while building.poll() is None and not ready():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    alive = building.poll() is None
    if alive:
        os.killpg(building.pid, how)
    building.wait()
    return alive


def answers(space: Space) -> int:
    """How many answers the store holds."""
    with closing(sqlite3.connect(space.path(".draftmill/answers.sqlite"), timeout=10)) as store:
        return int(store.execute("SELECT count(*) FROM answers").fetchone()[0])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_generate_goes_on_after_a_kill(tmp_path: Path, how: signal.Signals) -> None:
    """Answers that were stored before the kill, or Ctrl-C, are not asked again."""
    space = copied(tmp_path)
    before = answers(space)
    space.edit("conf/experiment/tiny.yaml", "max_new_tokens: 8", "max_new_tokens: 300")
    space.edit("conf/run/default.yaml", "batch_size: 32", "batch_size: 1")
    space.edit("conf/dataset/alpha.yaml", "quota: 4", "quota: 8")
    assert killed(space, "generate@alpha", lambda: answers(space) > before + 1, how)
    stored = answers(space) - before  # of rows the first build did not ask
    assert space.repro("generate@alpha") == ["generate@alpha"]
    figures = space.figures("generate", "alpha")
    assert figures["asked"] + figures["reused"] == 8
    assert figures["reused"] >= stored >= 2


def test_train_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Training continues from its last checkpoint."""
    space = copied(tmp_path)
    space.edit("conf/drafter/eagle3_tiny.yaml", "epochs: 1.0", "epochs: 300.0")
    space.edit("conf/run/default.yaml", "checkpoint_every_s: 60", "checkpoint_every_s: 0.2")
    kept = space.path(".draftmill/train")
    # Weights come before latest.json, which makes a checkpoint of them.
    assert killed(
        space, "train", lambda: any(json.loads(file.read_text())["step"] for file in kept.glob("*/latest.json"))
    )
    assert space.repro("train") == ["train"]
    assert space.figures("train")["resumed_at"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("how", "times"), [(signal.SIGKILL, 50), (signal.SIGINT, 8)])
def test_kills_change_no_byte(tmp_path: Path, how: signal.Signals, times: int) -> None:
    """At random moments of a whole build; the build that completes equals an undisturbed one up to blend."""
    space, moments = new(tmp_path / "project"), random.Random(0)
    assert space.draftmill("compose").code == 0
    for _ in range(times):
        end = time.monotonic() + moments.uniform(0.5, 12.0)
        killed(space, "report", lambda end=end: time.monotonic() > end, how)  # type: ignore[misc]
        assert space.draftmill("mend").code == 0
    space.repro()
    whole = copied(tmp_path / "undisturbed")
    assert_equal_builds(space, whole)


@pytest.mark.slow
def test_the_same_commit_builds_the_same_bytes(tmp_path: Path) -> None:
    """Two builds from nothing are equal up to blend, and so is what train makes on the CPU."""
    space, other = new(tmp_path / "project"), copied(tmp_path / "other")
    assert space.draftmill("compose").code == 0
    space.repro("train")
    assert_equal_builds(space, other)
    weights = "build/train/drafter/model.safetensors"
    assert space.path(weights).read_bytes() == other.path(weights).read_bytes()


def assert_equal_builds(one: Space, other: Space) -> None:
    """Every output up to blend has the same bytes in both."""
    for stage in ("extract", "generate", "tokenize", "hidden_states", "blend"):
        assert contents(one.path(f"build/{stage}")) == contents(other.path(f"build/{stage}"))


def contents(folder: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
