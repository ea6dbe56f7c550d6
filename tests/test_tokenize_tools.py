"""`draftmill show`, `export-tokens` and `check-template`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from families import FAMILIES, make_target
from test_tokenize import CHAT, Project, answer, says, user
from typer.testing import CliRunner

from draftmill import config
from draftmill.cli.tokens import app
from draftmill.errors import BuildError, DataError, UsageError
from draftmill.target import Renderer, Target
from draftmill.tokenize.export import expanded
from draftmill.tokenize.probe import check, facts, load_target
from draftmill.tokenize.show import show


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Target) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, tiny_target)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_export_writes_one_object_a_line(project: Project) -> None:
    project.run([answer("a", CHAT, generated=[3]), answer("b", CHAT, generated=[1])], "generated")
    done = invoke("export-tokens", "d")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 2
    assert list(lines[0]) == ["input_ids", "loss_mask", "seq_len", "n_prompt_tokens", "n_response_tokens"]
    first = lines[0]
    assert first["seq_len"] == len(first["input_ids"]) == len(first["loss_mask"])
    trained = [i for i, on in zip(first["input_ids"], first["loss_mask"], strict=True) if on]
    assert project.renderer.decode(trained) == "bye<|im_end|>"
    assert first["n_prompt_tokens"] + first["n_response_tokens"] == first["seq_len"]


def test_export_leaves_out_rows_without_anything_to_train(project: Project) -> None:
    project.run([*(answer(f"a{i}", CHAT, generated=[1]) for i in range(99)), answer("z", CHAT)], "generated")
    assert invoke("export-tokens", "--output", "out/rows.jsonl").exit_code == 0
    assert len(Path("out/rows.jsonl").read_text().splitlines()) == 99


def test_export_says_what_is_missing(project: Project) -> None:
    with pytest.raises(BuildError, match="nothing is tokenized yet"):
        invoke("export-tokens")
    Path("params.yaml").write_text("datasets: {d: {}}")
    with pytest.raises(BuildError, match=r"dvc repro pipeline/tokenize/dvc\.yaml:tokenize@d"):
        invoke("export-tokens", "d")
    with pytest.raises(UsageError, match="no dataset 'other'"):
        invoke("export-tokens", "other")
    with pytest.raises(UsageError, match="no format 'csv'"):
        invoke("export-tokens", "d", "--format", "csv")


def test_expanding_runs() -> None:
    assert expanded([{"start": 1, "length": 2}, {"start": 4, "length": 1}], 6) == [0, 1, 1, 0, 1, 0]


def test_show_prints_a_row_from_its_file_to_its_tokens(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    chat = [user("hi\x1b[31m"), says("hello", reasoning="greet"), user("more"), says("bye")]
    project.run([answer("row", chat, generated=[1, 3])])
    (project.folder / "rows.jsonl").write_text(json.dumps({"id": "row", "turns": [{"role": "user", "content": "hi"}]}))
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["source_mode"] = "real"
    params["datasets"]["d"] |= {
        "source": {"files": "rows.jsonl"},
        "schema": {"turns": {"each": "turns"}, "id": "id"},
        "answer": "regenerate",
    }
    Path("params.yaml").write_text(yaml.safe_dump(params))
    config._load.cache_clear()
    show("d", "row", None)
    printed = capsys.readouterr().out
    assert "rows.jsonl, line 1" in printed
    assert "[1] assistant generated stop" in printed and "reasoning: greet" in printed
    assert "⟦bye<|im_end|>⟧" in printed and "\x1b" not in printed
    show("d", None, "tokenize")
    assert capsys.readouterr().out.startswith("── tokenize")


def test_show_names_what_it_does_not_know(project: Project) -> None:
    project.run([answer("row", CHAT)])
    with pytest.raises(UsageError, match="no dataset 'e'"):
        show("e", None, None)
    with pytest.raises(UsageError, match="did you mean 'tokenize'"):
        show("d", None, "tokenise")
    with pytest.raises(DataError, match="no row 'x'"):
        show("d", "x", "tokenize")
    (project.folder / "build/generate/d/answers.parquet").unlink()
    (project.folder / "build/tokenize/d/tokens.parquet").unlink()
    with pytest.raises(BuildError, match="nothing is built yet"):
        show("d", None, None)


EXPECTED = {
    "ours": {"default system text": "none", "history, reasoning": "kept: one row", "tools": "rendered"},
    "chatml": {"default system text": "adds '<|im_start|>system\\nYou are a helpful assistant.'"},
    "thinking": {
        "reasoning": "rendered in the last turn, NOT rendered in the history",
        "history, plain chat": "rewritten: 2 rows for 2 turns",
        "history, reasoning": "rewritten: 2 rows for 2 turns",
    },
    "not_thinking": {"history, plain chat": "rewritten: 2 rows for 2 turns"},
    "llama3": {"reasoning": "NOT rendered", "history, tool loops": "kept: one row"},
    "kimi_python": {"tokenizer": "Python (slow)", "rendering": "Python code of the tokenizer's class"},
    "mistral": {"history, plain chat": "kept: one row", "history, tool loops": "rewritten: 2 rows for 3 turns"},
    "gemma": {"tools": "NOT rendered", "tool results": "rendered", "default system text": "none"},
    "harmony": {"history, plain chat": "rewritten: 2 rows for 2 turns"},
    "deepseek": {"history, reasoning": "rewritten: 2 rows for 2 turns"},
    "hermes": {"spans are found by": "generation blocks of the template"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_facts_of_templates(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_KEEP", str(tmp_path / "keep"))
    target = make_target(name, tmp_path / name)
    found = facts(Renderer(target, tmp_path / name))
    assert {key: found[key] for key in EXPECTED[name]} == EXPECTED[name]
    assert set(EXPECTED) <= set(FAMILIES)


def test_check_template_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target = make_target("chatml", tmp_path / "model")
    settings = json.loads((tmp_path / "model/tokenizer_config.json").read_text())
    settings["chat_template"] = Path(str(target.chat_template)).read_text()
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "model/config.json").unlink()
    check(str(tmp_path / "model"))
    printed = capsys.readouterr().out
    assert "spans are found by:" in printed and "⟦A machine that grinds corn.<|im_end|>⟧" in printed
    with pytest.raises(UsageError, match="neither a target nor a folder"):
        load_target("nothing")
