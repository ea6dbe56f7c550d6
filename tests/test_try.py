"""`draftmill try`: what it prints, and that it ends as the stage would."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from extracting import chat, write_rows

from draftmill.cli import main

SCHEMA = "schema: {turns: {each: t}, where: {a: 1}, tools: tools, id: id}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conf/dataset").mkdir(parents=True)
    (tmp_path / "conf/dataset/toy.yaml").write_text("source: {files: a.jsonl}\n" + SCHEMA)
    tools = [{"name": "f", "parameters": {}}]
    calls = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}
    rows = [
        {"id": f"r{i}", "a": 1, "t": [*chat(("user", f"q{i}")), calls, *chat(("user", "more"))], "tools": tools}
        for i in range(5)
    ]
    rows += [rows[0], {"id": "x", "a": 2, "t": []}]
    write_rows(tmp_path / "a.jsonl", rows)
    write_rows(tmp_path / "b.jsonl", [{**rows[1], "id": "\x1b[31mred", "t": chat(("user", "\x1b[2Jcleared"))}])
    return tmp_path


@dataclass(frozen=True)
class Done:
    """What a command printed and ended with."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `draftmill try` in the project."""
    monkeypatch.chdir(project)

    def command(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["draftmill", "try", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Done(int(ended.value.code or 0), printed.out, printed.err)

    return command


def test_json_is_one_object(project: Path, run: Run) -> None:
    done = run("toy", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["rows"], shown["kept"], shown["filtered"], shown["duplicates"], shown["rejects"]) == (7, 5, 1, 1, {})
    first = shown["first"]
    assert [row["id"] for row in first] == [f"r{i}" for i in range(5)], "in the order of the file"
    assert first[0]["messages"][0] == {"role": "user", "content": "q0"}
    assert first[0]["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert first[0]["tools"][0]["function"]["name"] == "f"


def test_text_shows_the_funnel_and_the_first_conversations(project: Path, run: Run) -> None:
    done = run("conf/dataset/toy.yaml")
    assert done.returncode == 0, done.stderr
    for part in (
        "rows 7, kept 5, duplicates 1",
        "filtered 1 (where 1)",
        "--- 1 of 5: r0",
        "[user] q0",
        'calls f({"x": 1})',
        "tools: f",
    ):
        assert part in done.stdout


def test_files_stand_in_for_the_source_and_rows_limit_it(project: Path, run: Run) -> None:
    done = run("toy", "--json", "--rows", "3", "--files", "a.jsonl", "b.jsonl")
    assert json.loads(done.stdout)["rows"] == 3
    done = run("toy", "--files", "b.jsonl", "--json")
    assert json.loads(done.stdout)["first"][0]["messages"] == [{"role": "user", "content": "\x1b[2Jcleared"}]
    assert "\x1b" not in done.stdout
    assert "\x1b" not in run("toy", "--files", "b.jsonl", "--explain").stdout
    assert run("toy", "b.jsonl").returncode == 2


def test_what_is_missing_is_looked_for_in_the_rows_that_were_read(project: Path, run: Run) -> None:
    write_rows(project / "late.jsonl", [{"t": chat(("user", f"q{i}")), "id": i or None} for i in range(9)])
    (project / "late.yaml").write_text("source: {files: late.jsonl}\nschema: {turns: {each: t}, id: id}\n")
    done = run("late.yaml", "--rows", "1", "--explain", "--json")
    assert (done.returncode, json.loads(done.stdout)["explain"][-2]["rows"]) == (1, 1)
    assert "id matched nothing in 1 rows" in done.stderr and "is there 1 times" in done.stderr
    assert run("late.yaml", "--rows", "2").returncode == 0


def test_explain_says_what_each_path_means_and_where_it_stopped(project: Path, run: Run) -> None:
    (project / "wrong.yaml").write_text("source: {files: a.jsonl}\nschema: {prompt: 't[role=usr].content', id: id}\n")
    done = run("wrong.yaml", "--explain")
    assert done.returncode == 1
    assert "t[role=usr].content  =  $['t'][?@['role'] == 'usr']['content']" in done.stdout
    assert "schema.prompt: matched in 0 of 7 rows" in done.stdout
    assert "none with role = 'usr'; values there: user 12, assistant 6" in done.stdout
    assert "schema.id: matched in 7 of 7 rows" in done.stdout
    explained = json.loads(run("toy", "--explain", "--json").stdout)["explain"]
    assert {entry["key"] for entry in explained} >= {"schema.turns.each", "schema.tools", "schema.id", "schema.roles"}
    assert explained[-1]["labels"] == {"user": 12, "assistant": 6}


def test_it_fails_as_the_stage_would(project: Path, run: Run) -> None:
    (project / "wrong.yaml").write_text("source: {files: a.jsonl}\nschema: {turns: {each: tt}}\n")
    done = run("wrong.yaml", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["kept"] == 0
    assert done.stderr.startswith("error: wrong.yaml: schema.turns.each: ")


@pytest.mark.parametrize(
    ("name", "text", "code", "says"),
    [
        ("tooy", None, 2, "did you mean 'toy'?"),
        ("bad.yaml", "source: {files: a.jsonl}\nschema: {prompt: x, promt: y}\n", 1, "did you mean 'prompt'?"),
        ("bad.yaml", "source: {files: a.jsonl\n", 1, "not valid YAML"),
        ("bad.yaml", "source: {files: a.jsonl}\nschema: {prompt: t[role=user].content}\n", 1, "fix: quote a path"),
        ("bad.yaml", "source: {files: a.jsonl}\nschema: {prompt: @.p}\n", 1, "begins with @"),
        ("bad.yaml", "source: {files: a.jsonl}\nsource: {files: b}\n", 1, "fix: leave one of the two out"),
        ("bad.yaml", "- a\n", 1, "is not a map"),
        ("bad.yaml", "schema: {prompt: x}\n", 1, "`source` is required"),
        ("nothere.yaml", None, 1, "no such file"),
        ("bad.yaml", "source: {files: no.jsonl}\nschema: {prompt: x}\n", 1, "no such file"),
        ("bad.yaml", "source: {files: a.jsonl}\nschema: {prompt: 'x['}\n", 1, "at character"),
    ],
)
def test_mistakes_are_one_message(project: Path, run: Run, name: str, text: str | None, code: int, says: str) -> None:
    if text is not None:
        (project / name).write_text(text)
    done = run(name)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of this project, in a folder of the test's own."""
    root = Path(__file__).parents[1]
    shutil.copytree(root / "conf", tmp_path / "conf")
    shutil.copy(root / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ["try", "nosuch"],
        ["pin", "nosuch"],
        ["show", "nosuch"],
        ["answer", "nosuch"],
        ["audit", "nosuch"],
        ["export-tokens", "nosuch"],
    ],
)
def test_an_unknown_dataset_is_wrong_use_everywhere(
    checkout: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    code, said = ended(command, monkeypatch, capsys)
    assert code == 2
    assert "nosuch" in said


@pytest.mark.parametrize(
    "command",
    [
        ["try", "nosuch.yaml"],
        ["try", "sharegpt", "--files", "no.jsonl"],
        ["path", "a", "no.json"],
        ["inspect", "no.json"],
    ],
)
def test_a_missing_file_is_a_data_error_everywhere(
    checkout: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    code, said = ended(command, monkeypatch, capsys)
    assert code == 1
    assert "no such file" in said and command[-1] in said


def ended(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """The exit code of a command, and what it said of an error."""
    monkeypatch.setattr(sys, "argv", ["draftmill", *command])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().err
