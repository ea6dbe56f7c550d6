"""A whole project on `experiment=tiny`, built once a session by the real dvc and copied for each test.

space = copied(tmp_path)
space.edit("conf/dataset/alpha.yaml", "quota: 4", "quota: 6")
assert space.repro() == [...]          # the stages that ran, in order
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from draftmill.pipeline import address

ROOT = Path(__file__).parent.parent
UPKEEP = {"compose", "replan"}
AFTER_BLEND = ["train", "export", "evaluate", "report"]

ALPHA = """\
source: {files: data/alpha.jsonl}
schema: {prompt: question, id: key}
quota: 4
tags: [general]
"""
BETA = """\
source: {files: data/beta.jsonl}
schema:
  turns: {each: messages}
quota: 4
mask: assistant
"""
GAMMA = """\
source: {files: data/gamma.jsonl}
schema: {prompt: text}
quota: 3
"""
WORDS = ("lake", "stone", "paper", "cloud", "bread", "clock", "garden", "river", "window", "candle", "bridge", "piano")


def alpha_rows(count: int, start: int = 0) -> str:
    """JSON Lines of distinct questions, numbered from `start`."""
    rows = (
        {"key": f"q{i}", "question": f"What is a {WORDS[i % 12]} of kind {i}?"} for i in range(start, start + count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def beta_rows(count: int) -> str:
    """JSON Lines of chats with two user turns and recorded answers."""

    def chat(i: int) -> list[dict[str, str]]:
        said = [f"Tell me about {WORDS[i % 12]} {i}.", f"It is number {i}.", "And a colour for it?", "Blue."]
        return [{"role": "assistant" if turn % 2 else "user", "content": text} for turn, text in enumerate(said)]

    return "".join(json.dumps({"messages": chat(i)}) + "\n" for i in range(count))


@dataclass(frozen=True)
class Done:
    """A command that ended: its exit code, and standard output and error together."""

    code: int
    text: str

    @property
    def ran(self) -> list[str]:
        """The stages that dvc ran, in order, without those that only keep params.yaml up to date."""
        names = re.findall(r"^Running stage '(?:[^':]+:)?([^':]+)':", self.text, re.MULTILINE)
        return [name for name in names if name not in UPKEEP]


@dataclass(frozen=True)
class Space:
    """A project in a folder of its own."""

    root: Path

    def run(self, *command: str, **environment: str) -> Done:
        """Run a command in the project with this interpreter's programs first on the path."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout)

    @staticmethod
    def environment(**more: str) -> dict[str, str]:
        """The variables a build runs with: quiet libraries, one thread, nothing of an outer build."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "DRAFTMILL_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "OMP_NUM_THREADS": "1", "DVC_NO_ANALYTICS": "1"} | more

    @property
    def python(self) -> Path:
        """The interpreter that builds."""
        return Path(sys.executable)

    def dvc(self, *arguments: str) -> Done:
        """`dvc …`, whatever comes of it."""
        return self.run(sys.executable, "-m", "dvc", *arguments)

    def draftmill(self, *arguments: str) -> Done:
        """`draftmill …`, whatever comes of it."""
        return self.run(str(Path(sys.executable).with_name("draftmill")), *arguments)

    def repro(self, *arguments: str) -> list[str]:
        """`dvc repro …` of short names, which must succeed; the stages that ran, in order."""
        done = self.dvc("repro", *map(address, arguments))
        assert done.code == 0, done.text
        return done.ran

    def path(self, name: str) -> Path:
        """A file of the project."""
        return self.root / name

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text, encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace the one occurrence of `old` in a file."""
        text = self.path(name).read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old, text.count(old))
        self.write(name, text.replace(old, new))

    def figures(self, stage: str, dataset: str | None = None) -> dict[str, Any]:
        """What the last run of a stage noted about itself."""
        path = self.path(f".draftmill/runs/{stage}/{dataset or 'all'}.json")
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def metrics(self, stage: str, dataset: str = "") -> dict[str, Any]:
        """metrics.json of a stage."""
        return dict(json.loads(self.path(f"build/{stage}/{dataset}/metrics.json").read_text(encoding="utf-8")))

    def git(self, *arguments: str) -> str:
        """`git …`, which must succeed."""
        done = self.run("git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments)
        assert done.code == 0, done.text
        return done.text

    def commit(self, message: str) -> None:
        """Commit everything as it is."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)


def new(root: Path) -> Space:
    """The project's files with three small datasets of its own, nothing built."""
    root.mkdir(parents=True, exist_ok=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("conf", "pipeline", "stages", "src"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignore)
    for name in ("dvc.yaml", ".dvcignore", ".gitignore", "data/hub.txt", ".dvc/config", ".dvc/.gitignore"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    for declaration in (root / "conf/dataset").glob("*.yaml"):
        declaration.unlink()
    (root / "conf/local/machine.yaml").unlink(missing_ok=True)
    space = Space(root)
    space.write("conf/dataset/alpha.yaml", ALPHA)
    space.write("conf/dataset/beta.yaml", BETA)
    space.write("data/alpha.jsonl", alpha_rows(20))
    space.write("data/beta.jsonl", beta_rows(12))
    space.edit("conf/config.yaml", "experiment: quickstart", "experiment: tiny")
    space.git("init", "--quiet", "--initial-branch", "main")
    return space


@cache
def built() -> Path:
    """The folder of the prebuilt project, made at the first call and removed when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="draftmill-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    space = new(folder / "project")
    composed = space.draftmill("compose")
    assert composed.code == 0, composed.text
    space.repro()
    space.commit("built")
    return space.root


def copied(folder: Path) -> Space:
    """A copy of the prebuilt project that a test may change."""
    shutil.copytree(built(), folder / "project", symlinks=True)
    return Space(folder / "project")
