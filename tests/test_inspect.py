"""inspect on forms that published datasets have: what it proposes, what it tells, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from declared import extract, roles
from forms import FORMS, ROWS, bot, user
from hub_on_loopback import Hub, Repository
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from draftmill.cli.inspect import app
from draftmill.errors import ConfigError, DataError, UsageError
from draftmill.extract import Source, validate
from draftmill.inspect import inspect, report, write_declaration, yaml_text
from draftmill.inspect.origin import find_source


def written(folder: Path, value: Any) -> str:
    """A document, or a list of rows as lines, in a file."""
    as_lines = isinstance(value, list) and not (isinstance(value[0], dict) and "role" in value[0])
    path = folder / ("data.jsonl" if as_lines else "data.json")
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in value) if as_lines else json.dumps(value), encoding="utf-8"
    )
    return str(path)


@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_recognized_and_its_declaration_works(form: str, tmp_path: Path) -> None:
    value, schema, rows, expected_roles = FORMS[form]
    found = inspect(Source(files=written(tmp_path, value)))
    assert found.proposal.schema == schema and found.proposal.rows == rows
    declaration = yaml.safe_load(yaml_text(found.declaration))
    validate("tried", declaration)
    if "prompt" not in schema:
        declaration["answer"] = "dataset"  # to see the answers too
    result = extract(declaration, tmp_path)
    assert result.rejects.total() == 0 and result.unseen == []
    assert result.kept + result.duplicates == (1 if rows == "$" or "trajectory" in value else len(ROWS))
    assert result.filtered == (len(ROWS) if "where" in schema else 0)
    assert expected_roles in [roles(record) for record in result.records]


def test_csv_and_tsv_with_capitals(tmp_path: Path) -> None:
    for name, sign in (("a.csv", ","), ("a.tsv", "\t")):
        (tmp_path / name).write_text(
            f"Question{sign}Answer\nwhat is 1{sign}one\nwhat is 2{sign}two\n", encoding="utf-8"
        )
        schema = inspect(Source(files=str(tmp_path / name))).proposal.schema
        assert schema == {
            "turns": [{"role": {"as": "user"}, "text": "Question"}, {"role": {"as": "assistant"}, "text": "Answer"}]
        }


def test_text_that_only_looks_like_json_is_not_decoded(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"sort {i}", "input": "[3, 1, 2]" if i % 2 else "three numbers", "output": "1"} for i in ROWS
    ]
    found = inspect(Source(files=written(tmp_path, rows)))
    assert found.proposal.schema is not None and "decode" not in found.proposal.schema


def test_words_that_mean_nothing_are_empty(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}" if i else "N/A", "answer": "a"} for i in ROWS]
    found = inspect(Source(files=written(tmp_path, rows)))
    assert found.proposal.schema is not None and found.proposal.schema["empty"] == ["N/A"]
    assert found.declaration["schema"]["expect"] == {"yield": 0.83}


def test_an_id_must_be_there_and_unique(tmp_path: Path) -> None:
    rows = [{"id": i // 2, "row_id": f"r{i}", "uuid": None if i else "u", "messages": [user(i), bot(i)]} for i in ROWS]
    found = inspect(Source(files=written(tmp_path, rows)))
    assert found.proposal.schema == {"turns": {"each": "messages"}, "id": "row_id"}


# -- what a person is told ------------------------------------------------------------------------


def test_the_report_tells_keys_roles_shares_and_the_declaration(tmp_path: Path) -> None:
    rows = [
        {
            "note": None if i % 2 else "n",
            "messages": [{"role": "system", "content": "the same"}, user(i % 2), {**bot(i), "content": None}],
        }
        for i in range(4)
    ] + [{"note": "n", "messages": [user(7), bot(7), user(8)]}]
    lines = list(report(inspect(Source(files=written(tmp_path, rows))), context=5))
    text = "\n".join(lines)
    assert "5 rows of" in lines[0]
    assert "note: text, null 40%  n" in text
    assert "roles: user 6 (user), assistant 5 (assistant), system 4 (system)" in text
    assert "last turn not the assistant's: 20% (1 of 5)" in text
    assert "no text in turns of assistant: 80% (4 of 5)" in text
    assert "most frequent system text: 100% (4 of 4)" in text
    assert "most frequent first user turn: 40% (2 of 5)" in text
    assert "rows over 5 tokens (estimated): 100% (5 of 5)" in text
    assert "  turns: {each: messages}" in lines
    assert "tried on these rows: 3 of 5 rows kept" in text


def test_flags_unknown_roles_and_parts_are_reported_not_decided(tmp_path: Path) -> None:
    picture = [{"type": "image", "image": "x"}, {"type": "text", "text": "what is it?"}]
    rows = [
        {
            "messages": [
                {"role": "user", "content": picture, "train": False},
                {"role": "critic", "content": "hm"},
                {**bot(i), "train": True},
            ]
        }
        for i in ROWS
    ]
    found = inspect(Source(files=written(tmp_path, rows)))
    assert found.proposal.schema is not None and "roles" not in found.proposal.schema
    notes = " ".join(found.proposal.notes)
    assert "critic 6" in notes and "image 6" in notes and "mask: {flag: train}" in notes


def test_a_talk_of_unknown_speakers_is_written_for_a_person_to_name_them(tmp_path: Path) -> None:
    rows = [
        {"dialog": [{"who": "customer", "msg": f"My parcel {i} is lost."}, {"who": "clerk", "msg": "I am sorry."}]}
        for i in ROWS
    ]
    found = inspect(Source(files=written(tmp_path, rows)))
    assert found.proposal.schema == {"turns": {"each": "dialog", "role": "who", "text": "msg"}}
    assert "roles: {customer: user, clerk: assistant}" in found.proposal.notes[0]
    for row in rows:
        row["dialog"].insert(0, {"who": "policy", "msg": "Answer briefly."})
    three = inspect(Source(files=written(tmp_path, rows)))
    assert "roles: {policy: …, customer: …, clerk: …}" in three.proposal.notes[0]
    found.declaration["schema"]["roles"] = {"customer": "user", "clerk": "assistant", "policy": "system"}
    assert extract(found.declaration, tmp_path).kept == len(ROWS)


def test_traces_and_ids_that_rows_share_are_pointed_out(tmp_path: Path) -> None:
    rows = [
        {
            "instance_id": f"task {i // 2}",
            "run_id": i,
            "messages": [turn for _ in range(6) for turn in (user(i), bot(i))],
        }
        for i in ROWS
    ]
    notes = " ".join(inspect(Source(files=written(tmp_path, rows))).proposal.notes)
    assert "6 user turns a row and no tool turns" in notes and "perhaps  group: instance_id" in notes
    assert "run_id" not in notes


def test_rows_that_do_not_fit_are_named_and_the_yield_is_written(tmp_path: Path) -> None:
    rows = [{"messages": [user(i), bot(i)] if i else [bot(i)]} for i in range(10)]
    found = inspect(Source(files=written(tmp_path, rows)))
    assert found.declaration["schema"]["expect"] == {"yield": 0.9}
    assert found.proposal.notes == ["1 of 10 rows do not fit: no_user_turn 1"]
    text = yaml_text(found.declaration, found.proposal.notes)
    assert "# 1 of 10 rows do not fit: no_user_turn 1\n" in text
    assert yaml.safe_load(text) == found.declaration


def test_control_characters_of_rows_never_reach_the_terminal(tmp_path: Path) -> None:
    rows = [
        {"\x1b[31mkey": "\x07", "messages": [{"role": "user", "content": f"\x1b]0;x\x07{i}"}, bot(i)]} for i in ROWS
    ]
    path = written(tmp_path, rows)
    outcome = CliRunner().invoke(app, [path])
    assert outcome.exit_code == 0 and "\x1b" not in outcome.output and "\x07" not in outcome.output


KEYS = st.sampled_from(
    [
        "role",
        "content",
        "value",
        "messages",
        "text",
        "tools",
        "name",
        "parameters",
        "function",
        "tool_calls",
        "system",
        "prompt",
        "response",
        "history",
        "data",
        "parts",
        "thinking",
        "input",
        "output",
        "question",
        "turns",
        "type",
        "",
        "a b",
        "x'y",
        'q"z\\',
        "é",
        "history",
        "message",
        "is_human",
        "columns",
        "data",
        "instruction",
        "answers",
        "arguments",
        "parent_id",
        "call_id",
        "functionCall",
    ]
)
TEXTS = st.sampled_from(
    [
        "user",
        "assistant",
        "human",
        "hello there",
        "",
        "None",
        "[1]",
        '{"role": "user"}',
        "USER: hi\nASSISTANT: yo",
        "text",
        "tool_result",
        "tool_use",
        "image",
        '<tools>[{"name": "f", "parameters": {}}]</tools>',
        "\x00",
        "function_call",
        "prompter",
        "[INST] hi there [/INST] yo",
        '[{"name": "f", "arguments": {}}]',
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)
TURNS = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "tool", "agent"]),
        "content": TEXTS | st.lists(VALUES, max_size=3),
    },
    optional={"tool_calls": VALUES, "thinking": VALUES, "function_call": VALUES, "weight": VALUES, "x'y": VALUES},
)
CHATS = st.fixed_dictionaries(
    {"messages": st.lists(TURNS, min_size=1, max_size=4)},
    optional={"tools": VALUES, "system": VALUES, "id": VALUES, "output": VALUES},
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(CHATS | VALUES, min_size=1, max_size=4))
def test_whatever_the_rows_are_the_proposal_is_a_valid_file(rows: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    found = inspect(Source(files=str(path)))
    assert list(report(found, 100))
    if found.proposal.schema is not None:
        text = yaml_text(found.declaration, found.proposal.notes)
        assert yaml.safe_load(text) == found.declaration
        validate("any", found.declaration)


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of an empty project."""
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_write_saves_a_valid_declaration_once(project: Path) -> None:
    Path("chats.jsonl").write_text("".join(json.dumps({"messages": [user(i), bot(i)]}) + "\n" for i in ROWS), "utf-8")
    outcome = CliRunner().invoke(app, ["chats.jsonl", "--write", "mine"])
    assert outcome.exit_code == 0 and "draftmill try conf/dataset/mine.yaml" in outcome.output
    path = project / "conf" / "dataset" / "mine.yaml"
    declaration = yaml.safe_load(path.read_text(encoding="utf-8"))
    validate("mine", declaration)
    assert path.read_text(encoding="utf-8").startswith(
        "# yaml-language-server: $schema=../schema/dataset.schema.json\n"
    )
    assert declaration["source"] == {"files": "chats.jsonl"}
    again = CliRunner().invoke(app, ["chats.jsonl", "--write", "mine"])
    assert isinstance(again.exception, ConfigError) and "conf/dataset/mine.yaml" in str(again.exception)


@pytest.mark.parametrize("name", ["Mine", "my-set", "a/b", ""])
def test_write_refuses_what_is_no_name(name: str, project: Path) -> None:
    with pytest.raises(UsageError, match="small letters"):
        write_declaration(name, "")


def test_write_outside_a_project_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="root of the project"):
        write_declaration("mine", "")


def test_rows_without_a_conversation_show_their_keys_and_fail(project: Path) -> None:
    Path("tokens.jsonl").write_text('{"input_ids": [1, 2], "labels": [-100, 2]}\n' * 3, encoding="utf-8")
    outcome = CliRunner().invoke(app, ["tokens.jsonl", "--write", "mine"])
    assert isinstance(outcome.exception, DataError) and "tokens.jsonl" in str(outcome.exception)
    assert "input_ids: list" in outcome.output
    assert not Path("conf/dataset/mine.yaml").exists()


def test_a_file_without_a_row_is_one_clear_error(project: Path) -> None:
    Path("bad.jsonl").write_text("{not json\n{nor this\n", encoding="utf-8")
    with pytest.raises(DataError, match="no row can be read") as failure:
        inspect(Source(files="bad.jsonl"))
    assert failure.value.file == "bad.jsonl"


def test_unreadable_rows_are_counted(project: Path) -> None:
    lines = [json.dumps({"messages": [user(i), bot(i)]}) for i in ROWS] + ["{cut off"]
    Path("cut.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = inspect(Source(files="cut.jsonl"))
    assert found.unreadable.total() == 1
    assert "1 unreadable" in next(iter(report(found, 4096)))


def test_the_argument_is_a_file_or_an_id_of_the_hub(project: Path) -> None:
    Path("a.jsonl").write_text("", encoding="utf-8")
    assert find_source("a.jsonl") == Source(files="a.jsonl")
    assert find_source("data/*.jsonl") == Source(files="data/*.jsonl")
    assert find_source("owner/name.v1", "default", "train") == Source(
        hub="owner/name.v1", config="default", split="train"
    )
    for text in ("missing/file.jsonl", "nothing", "a/b/c"):
        with pytest.raises(DataError, match="no such file"):
            find_source(text)
    with pytest.raises(UsageError, match="dataset of the Hub"):
        find_source("a.jsonl", split="train")


def test_a_dataset_of_the_hub(tmp_path: Path) -> None:
    card = b"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train_sft\n    path: chats.jsonl\n---\n"
    lines = b"".join(json.dumps({"messages": [user(i), bot(i)]}).encode() + b"\n" for i in ROWS)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    with Hub({"owner/chats": Repository({"README.md": card, "chats.jsonl": lines})}) as hub:
        words = ["inspect", "owner/chats", "--split", "train_sft", "--write", "chats"]
        command = [sys.executable, "-c", "from draftmill.cli import main; main()", *words]
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
        }
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    declaration = yaml.safe_load((tmp_path / "conf" / "dataset" / "chats.yaml").read_text(encoding="utf-8"))
    assert declaration["source"] == {"hub": "owner/chats", "split": "train_sft"}
    assert declaration["schema"] == {"turns": {"each": "messages"}}


def test_a_split_is_chosen_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def several(*_: object) -> None:
        raise DataError("o/a has several splits: test, train", key="source.split", fix="add  split: …")

    monkeypatch.setattr("draftmill.inspect.inspect", several)
    caught = CliRunner().invoke(app, ["o/a"]).exception
    assert isinstance(caught, DataError)
    assert (caught.file, caught.fix) == ("o/a", "choose one with --split")
