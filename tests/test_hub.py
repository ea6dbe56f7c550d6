"""Hub sources, against a small hub on loopback; and pinning."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_on_loopback import SHA, Hub, Repository

from draftmill.extract.pinning import pinned

ROWS = b"".join(json.dumps({"n": n, "text": "123", "x": 0.7, "pad": "y" * 900}).encode() + b"\n" for n in range(2000))
FEW = b'{"n": 1}\n{"n": 2}\n'
CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: tool
    path: data/tool-*.jsonl
  - split: train.raw
    path: data/raw.jsonl
- config_name: other
  data_files: other.jsonl
---
A card.
"""
REPOSITORIES = {
    "o/plain": Repository(
        {"data/train-00000.jsonl": FEW, "data/train-00001.jsonl": FEW, "data/test.jsonl": b'{"n": 3}\n'}
    ),
    "o/one": Repository({"a.json": b'[{"n": 5},\n {"n": "5"}]'}),
    "o/card": Repository(
        {"README.md": CARD, "data/tool-0.jsonl": FEW, "data/raw.jsonl": b'{"n": 4}\n', "other.jsonl": FEW}
    ),
    "o/packed": Repository(
        {"deep/a.jsonl.gz": gzip.compress(FEW), "deep/b.jsonl.gz": gzip.compress(FEW), "x.txt": b"x"}
    ),
    "o/gated": Repository({"a.jsonl": FEW}, gate=403, token="good"),
    "o/closed": Repository({"a.jsonl": FEW}, gate=401, token="good"),
    "o/barred": Repository({"a.jsonl": FEW}, gate=403, code=""),
    "o/locked": Repository({"a.jsonl": FEW}, gate=401, code=""),
    "o/script": Repository({"script.py": b"print()"}),
    "o/cut": Repository({"a.jsonl": ROWS}, cuts={"a.jsonl": 2}),
    "o/busy": Repository({"a.jsonl": FEW}, refusals={"a.jsonl": 2}),
    "o/pointer": Repository({"a.jsonl": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}),
    "o/nothing": Repository({"README.md": b"empty\n"}),
}

# Run once for all cases: huggingface_hub reads its environment when it is imported.
CLIENT = """
import json, os, sys, huggingface_hub.constants
from draftmill.errors import DataError
from draftmill.extract import hub
from draftmill.extract.readers import read
from draftmill.extract.source import Source
huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 1 << 16  # else small files begin again rather than go on
hub.PAUSE_S = 0.01
answers = []
for source, token in json.load(sys.stdin):
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    try:
        answers.append([[item.file, item.number, item.value] for item in read(Source(**source))])
    except DataError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""

CASES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "one split of several": ({"hub": "o/plain", "split": "test"}, "", [3]),
    "several splits": ({"hub": "o/plain", "split": ["test", "train"]}, "", [3, 1, 2, 1, 2]),
    "the only split": ({"hub": "o/one"}, "", [5, "5"]),
    "no split chosen": ({"hub": "o/plain"}, "", ["several splits: test, train", "source.split"]),
    "a split that is not there": (
        {"hub": "o/plain", "split": "trian"},
        "",
        ["no split 'trian'", "test, train", "did you mean 'train'"],
    ),
    "a split with a dot": ({"hub": "o/card", "split": "train.raw"}, "", [4]),
    "splits of the card": ({"hub": "o/card", "split": "train"}, "", ["no split 'train'", "tool, train.raw"]),
    "a configuration": ({"hub": "o/card", "config": "other"}, "", [1, 2]),
    "a configuration that is not there": (
        {"hub": "o/card", "config": "another"},
        "",
        ["another", "default", "other", "source.config"],
    ),
    "a revision": ({"hub": "o/one", "revision": SHA}, "", [5, "5"]),
    "a revision that is not there": (
        {"hub": "o/one", "revision": "v9"},
        "",
        ["no such revision", "v9", "source.revision"],
    ),
    "files by glob": ({"hub": "o/packed", "data_files": "deep/*.gz"}, "", [1, 2, 1, 2]),
    "a glob that matches none": (
        {"hub": "o/packed", "data_files": "deep/a.jsonl"},
        "",
        ["no file", "did you mean 'deep/a.jsonl.gz'"],
    ),
    "gated, 403": ({"hub": "o/gated"}, "", ["gated", "accept its conditions on", "/datasets/o/gated", "HF_TOKEN"]),
    "gated, 401": ({"hub": "o/closed"}, "", ["gated", "accept its conditions on"]),
    "gated, by glob": ({"hub": "o/gated", "data_files": "*.jsonl"}, "", ["gated", "accept its conditions on"]),
    "gated, a wrong token": ({"hub": "o/gated"}, "bad", ["gated"]),
    "gated, with the token": ({"hub": "o/gated"}, "good", [1, 2]),
    "403 and no more": ({"hub": "o/barred"}, "", ["/datasets/o/barred", "HF_TOKEN"]),
    "401 and no more": ({"hub": "o/locked"}, "", ["/datasets/o/locked", "HF_TOKEN"]),
    "403 at the file": ({"hub": "o/barred", "data_files": "*"}, "", ["/datasets/o/barred", "HF_TOKEN"]),
    "no such dataset": ({"hub": "o/none"}, "", ["does not exist on the Hub", "check the id"]),
    "a script": ({"hub": "o/script"}, "", ["Python script, which is not run", "data_files"]),
    "connections cut in mid-file": ({"hub": "o/cut"}, "", list(range(2000))),
    "a server that has too much to do": ({"hub": "o/busy"}, "", [1, 2]),
    "a pointer instead of the file": ({"hub": "o/pointer"}, "", ["Git LFS pointer", "o/pointer/a.jsonl"]),
    "no data files": ({"hub": "o/nothing"}, "", ["no data files are known", "data_files"]),
}


def environment(hub: Hub, home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return {
        **kept,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_DISABLE_XET": "1",
    }


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub(REPOSITORIES) as running:
        yield running


@pytest.fixture(scope="module")
def answers(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("hub_home")
    (home / "token").write_text("good")  # a token in a file must not be used
    given = json.dumps([[source, token] for source, token, _ in CASES.values()])
    (home / "o" / "one").mkdir(parents=True)  # a folder with the name of a dataset must not stand for it
    command = [sys.executable, "-c", CLIENT]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, env=environment(hub, home), cwd=home, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_hub_sources(answers: dict[str, Any], case: str) -> None:
    _, token, expected = CASES[case]
    answer = answers[case]
    if isinstance(answer, list):
        assert [value["n"] for _, _, value in answer] == expected
        return
    for words in expected:
        assert words in answer
    assert not token or token not in answer


def test_rows_are_named_by_their_file_and_not_changed(answers: dict[str, Any]) -> None:
    file, number, value = answers["connections cut in mid-file"][1]
    assert (file, number) == ("o/cut/a.jsonl", 2)
    assert value == {"n": 1, "text": "123", "x": 0.7, "pad": "y" * 900}


def test_a_cut_download_goes_on_where_it_stopped(hub: Hub, answers: dict[str, Any]) -> None:
    assert answers and hub.ranges["o/cut/a.jsonl"] >= 1


PINNED = [
    (
        "source: {hub: o/one, split: train}  # note\nquota: 3\n",
        "source: {hub: o/one, revision: abc, split: train}  # note\nquota: 3\n",
    ),
    (
        "source:\n  # where\n  hub: o/one  # id\n  split: a\n",
        "source:\n  # where\n  hub: o/one  # id\n  revision: abc\n  split: a\n",
    ),
    ("source:\n    hub: 'o/one'", "source:\n    hub: 'o/one'\n    revision: abc"),
    ("source: {hub: o/one, revision: old}  # x\n", "source: {hub: o/one, revision: abc}  # x\n"),
    ("source:\n  revision: 'old' # x\n  hub: o/one\n", "source:\n  revision: abc # x\n  hub: o/one\n"),
    ("{quota: 1, source: {\n  hub: o/one\n}}", "{quota: 1, source: {\n  hub: o/one, revision: abc\n}}"),
]


@pytest.mark.parametrize(("before", "after"), PINNED)
def test_pinning_changes_nothing_else(before: str, after: str) -> None:
    assert pinned(before, "abc") == after
    assert yaml.safe_load(pinned(before, "1234"))["source"]["revision"] == "1234"
    assert yaml.safe_load(pinned(before, "12e4"))["source"]["revision"] == "12e4"


def test_pin_command(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "dataset"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# mine\nsource: {hub: o/one}\n")
    (folder / "gated.yaml").write_text("source: {hub: o/none}\n")
    (folder / "local.yaml").write_text("source: {files: x.jsonl}\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from draftmill.cli import main; main()", "pin", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment(hub, tmp_path / "home"), timeout=60
        )

    done = run("mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert SHA in done.stdout
    assert (folder / "mine.yaml").read_text() == f"# mine\nsource: {{hub: o/one, revision: {SHA}}}\n"
    for name, code, words in (
        ("gated", 1, "does not exist"),
        ("local", 1, "no Hub dataset"),
        ("mime", 2, "did you mean 'mine'"),
    ):
        done = run(name)
        assert done.returncode == code
        assert words in done.stderr and "Traceback" not in done.stderr
