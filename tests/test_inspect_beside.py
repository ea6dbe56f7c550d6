"""What stands beside a conversation: other keys of turns, tools and answers elsewhere, other rows of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from extracting import extract
from forms import ROWS, SPEC, bot, said, user

from draftmill.extract import Source
from draftmill.inspect import inspect


def written(folder: Path, rows: list[Any]) -> str:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("turns", "proposed"),
    [
        ([user(0), {**bot(0), "model": "big"}, {**bot(1), "content": "", "model": "big"}], {}),
        ([{**user(0), "html": "<p>" * 99}, {**bot(0), "html": "<p>" * 99}], {}),
        (
            [{"to": "assistant", **said("user", "q")}, {"to": "user", **said("gpt", "a")}],
            {"role": "from", "text": "value"},
        ),
        ([{"role": "user", "text": "q"}, bot(0)], {"text": ["content", "text"]}),
    ],
)
def test_what_stands_beside_role_and_text_is_neither(turns: Any, proposed: Any, tmp_path: Path) -> None:
    found = inspect(Source(files=written(tmp_path, [{"messages": turns, "n": i} for i in ROWS])))
    assert found.proposal.schema == {"turns": {"each": "messages", **proposed}}


def test_tools_in_an_object_of_the_row_and_the_first_of_several_answers(tmp_path: Path) -> None:
    rows = [{"messages": [user(i)], "choices": [bot(i), bot(9)], "meta": {"tools": [SPEC]}} for i in ROWS]
    schema = inspect(Source(files=written(tmp_path, rows))).proposal.schema
    assert schema == {"turns": [{"each": "messages"}, {"each": "choices[0]"}], "tools": "meta.tools"}


def test_rows_that_are_turns_of_several_talks_are_not_put_together(tmp_path: Path) -> None:
    path = tmp_path / "turns.csv"
    path.write_text("talk_id,role,content\n" + "".join(f"{i},user,q{i}\n{i},assistant,a{i}\n" for i in ROWS), "utf-8")
    found = inspect(Source(files=str(path))).proposal
    assert found.schema is None and "`talk_id`" in found.notes[0]


def test_other_lists_of_rows_in_the_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "splits.json"
    splits = {name: [{"question": f"{name} {i}", "answer": "a"} for i in ROWS] for name in ("train", "test")}
    path.write_text(json.dumps({"data": splits}), encoding="utf-8")
    found = inspect(Source(files=str(path))).proposal
    assert (found.rows, found.notes) == ("data.train[*]", ["other rows of that form: data.test[*]"])


@pytest.mark.parametrize(
    ("row", "answered"),
    [
        ({"generated_solution": "a long answer {}", "expected_answer": "{}"}, "generated_solution"),
        ({"r1_solution_1": "a long answer {}", "r1_solution_2": "another answer {}"}, None),
        ({"final_answer": "a long answer {}"}, None),
    ],
)
def test_an_answer_by_its_name_alone_is_taken_with_a_comment(row: Any, answered: Any, tmp_path: Path) -> None:
    rows = [{"problem": f"p {i}", **{key: text.format(i) for key, text in row.items()}} for i in ROWS]
    found = inspect(Source(files=written(tmp_path, rows))).proposal
    if answered is None:
        assert (found.schema, found.notes) == ({"prompt": "problem"}, [])
    else:
        blocks = [{"role": {"as": "user"}, "text": "problem"}, {"role": {"as": "assistant"}, "text": answered}]
        assert found.schema == {"turns": blocks} and answered in found.notes[0]


def test_who_wrote_a_message_is_no_prompt_and_history_is_kept_without_an_answer(tmp_path: Path) -> None:
    assert (
        inspect(Source(files=written(tmp_path, [{"user": "U1", "text": f"t {i}"} for i in ROWS]))).proposal.schema
        is None
    )
    rows = [{"query": f"q {i}", "history": [["a", "b"]]} for i in ROWS]
    blocks = [
        {"each": "history", "pairs": {"user": "[0]", "assistant": "[1]"}},
        {"role": {"as": "user"}, "text": "query"},
    ]
    assert inspect(Source(files=written(tmp_path, rows))).proposal.schema == {"turns": blocks}


OPTIONS = ["red", "green", "blue"]


@pytest.mark.parametrize(
    ("beside", "paths"),
    [
        ({"choices": OPTIONS}, ["choices[0]", "choices[1]", "choices[2]"]),
        ({"choices": {"text": OPTIONS, "label": ["A", "B", "C"]}}, [f"choices.text[{i}]" for i in range(3)]),
        ({"opa": "red", "opb": "green", "opc": "blue"}, ["opa", "opb", "opc"]),
        ({"option_A": "red", "option_B": "green", "option_C": "blue"}, ["option_A", "option_B", "option_C"]),
    ],
)
def test_answers_to_choose_from_are_noted_with_the_turns_that_have_them(
    beside: dict[str, Any], paths: list[str], tmp_path: Path
) -> None:
    rows = [{"question": f"Which colour has thing {i}?", **beside, "cop": 1} for i in ROWS]
    found = inspect(Source(files=written(tmp_path, rows))).proposal
    assert found.schema == {"prompt": "question"}
    (note,) = found.notes
    schema = yaml.safe_load(note.partition("with them:  ")[2])
    assert schema["turns"]["text"]["join"] == ["question", *paths]
    extracted = extract(tmp_path, schema, *rows)
    assert extracted.conversations[0] == [("user", "Which colour has thing 0?\nred\ngreen\nblue")]


def test_a_passage_beside_the_question_or_the_talk_is_noted(tmp_path: Path) -> None:
    texts = [{"support": f"All about thing {i}."} for i in ROWS]
    asked = [{"question": f"What is thing {i}?", **text} for i, text in zip(ROWS, texts, strict=True)]
    talks = [{"messages": [user(i), bot(i)], **text} for i, text in zip(ROWS, texts, strict=True)]
    for rows, form in (asked, "text: {join: [support, question]"), (talks, "system: support"):
        found = inspect(Source(files=written(tmp_path, rows))).proposal
        assert [form in note for note in found.notes] == [True]
    same = [{**row, "support": "see the manual"} for row in asked]
    assert inspect(Source(files=written(tmp_path, same))).proposal.notes == [], "the same in all rows"
