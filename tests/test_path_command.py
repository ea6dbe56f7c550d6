"""`draftmill path` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def draftmill(*arguments: str, given: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from draftmill.cli import main; main()", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, cwd=folder, timeout=60)


def test_documents_of_files_and_of_standard_input(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"n": 1},\n {"n": 0.7}]')
    (tmp_path / "b.jsonl").write_text('{"n": 18446744073709551616}\n\n{"n": "é\\u009b"}\n')
    done = draftmill("path", "$..n", "a.json", "b.jsonl", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["1", "0.7", "18446744073709551616", '"é\\u009b"']
    assert draftmill("path", "[1].n", "a.json", folder=tmp_path).stdout == "0.7\n"
    assert draftmill("path", "a[b=x].c", given='{"a": [{"b": "x", "c": {"d": 1}}]}').stdout == '{"d": 1}\n'
    lines = draftmill("path", "a", given='{"a": 1}\n{"a": 2}\n').stdout.splitlines()
    assert list(map(json.loads, lines)) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "given", "code", "words"),
    [
        (["path", "a[b"], "{}", 2, ["cannot read the path", "'=' or '!='", "^"]),
        (["path", "a", "nothere.json"], "", 1, ["nothere.json", "no such file"]),
        (["path", "a"], '{"a": 1}\n{"a": \n', 1, ["standard input.json", "line 2", "truncated json"]),
        (["path", "a"], "", 1, ["empty"]),
        (["path", "a"], "hello", 1, ["is not JSON"]),
        (["path", "$[?match(@.a, @.b)]"], json.dumps([{"a": "a" * 5000 + "c", "b": "(a|aa)+"}]), 1, ["more than 2 s"]),
    ],
)
def test_errors(arguments: list[str], given: str, code: int, words: list[str]) -> None:
    done = draftmill(*arguments, given=given)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_closed_pipe_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(list(range(200_000))))
    command = f"{sys.executable} -c 'from draftmill.cli import main; main()' path '$[*]' a.json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
