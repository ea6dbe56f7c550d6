"""blend-diff: what moved between two blends, also between two git revisions with the real DVC."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from blending import blend_again, rows, run
from typer.testing import CliRunner

from draftmill.blend.diff import Moved, Snapshot, moved, read, report
from draftmill.errors import BuildError, UsageError


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_in_and_out() -> None:
    before = {("a", "1"): (1, 10), ("a", "2"): (1, 20), ("b", "1"): (1, 5)}
    now = {("a", "2"): (2, 20), ("a", "3"): (1, 30)}
    assert moved(before, now) == [
        Moved(dataset="a", before=2, now=3, entered=1, left=1, tokens_before=30, tokens_now=70),
        Moved(dataset="b", before=1, now=0, entered=0, left=1, tokens_before=5, tokens_now=0),
    ]


def test_the_report_names_changed_settings_and_what_crossed_the_hold_out() -> None:
    before = Snapshot({("a", "1"): (1, 10)}, {("a", "2"): (1, 10)}, {"size": None, "holdout": {"fraction": 0.1}})
    now = Snapshot({("a", "2"): (1, 10)}, {}, {"size": None, "holdout": {"fraction": 0.2}})
    said = "\n".join(report(before, now))
    assert "blend.holdout.fraction: 0.1 -> 0.2" in said and "size" not in said
    assert "1 from held out to train, 0 from train to held out" in said
    assert "held out: 1 rows before, 0 now, 0 in, 1 out" in said


def test_against_a_git_revision() -> None:
    """params.yaml and dvc.lock of the revision, its blend from DVC's cache."""
    settings = {"allocate": {"all": {"match": "*", "take": {"rows": 30}}}, "holdout": {"fraction": 0.1}}
    run({"a": rows("a", 100), "b": rows("b", 50)}, **settings)
    Path("params.yaml").write_text("blend: {size: null}\n")
    Path("dvc.yaml").write_text("stages:\n  blend:\n    cmd: 'true'\n    outs: [build/blend]\n")
    Path(".gitignore").write_text("/build/\n")
    for command in (
        ["git", "init", "-q"],
        [sys.executable, "-m", "dvc", "init", "-q"],
        [sys.executable, "-m", "dvc", "commit", "-q", "-f", "blend"],
        ["git", "add", "."],
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(command, check=True)
    Path("params.yaml").write_text("blend: {size: {rows: 40}}\n")
    blend_again(["a", "b"], {"all": {"match": "*", "take": {"rows": 40}}}, holdout={"fraction": 0.1})
    from draftmill.cli.blend import app

    done = CliRunner().invoke(app, ["HEAD"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "blend.size: None -> {'rows': 40}" in done.output and "across the hold-out: 0 from" in done.output
    total = next(line for line in done.output.splitlines() if line.startswith("all"))
    assert total.split()[:5] == ["all", "30", "40", "10", "0"]
    with pytest.raises(UsageError):
        CliRunner().invoke(app, ["nothing"], catch_exceptions=False)
    subprocess.run(["rm", "-rf", ".dvc/cache"], check=True)
    with pytest.raises(BuildError, match="the blend of HEAD is not there"):
        CliRunner().invoke(app, ["HEAD"], catch_exceptions=False)


def test_read_counts_copies() -> None:
    run(
        {"a": rows("a", 5)},
        {"a": {"match": "a", "share": 1}},
        size={"rows": 8},
        max_repeat=2,
        holdout={"fraction": 0.0},
    )
    found = read(io.BytesIO(Path("build/blend/train.parquet").read_bytes()))
    assert sum(copies for copies, _ in found.values()) == 8 and len(found) == 5


def test_no_blend_here() -> None:
    from draftmill.cli.blend import _here

    with pytest.raises(BuildError, match="no blend here"):
        _here()
