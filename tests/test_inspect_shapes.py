"""What inspect writes, unedited, for layouts that published files have: counts and texts as a person reads them.

A talk is told as "U:text A:text …": S system, U user, A assistant, C an assistant's call, T what the tool said;
reasoning stands in brackets before the answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from declared import extract
from forms import bot, said, user
from typer.testing import CliRunner

from draftmill.cli.inspect import app
from draftmill.errors import DataError
from draftmill.extract import Source
from draftmill.inspect import inspect, yaml_text

N = 4
SPEC = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 0.7}'}}
LETTERS = {"system": "S", "user": "U", "assistant": "A", "tool": "T"}


@dataclass(frozen=True)
class Shape:
    """`row` makes the i-th row (or `whole` the file); `talk` is how the first comes out; `kept` of them are kept."""

    talk: str
    row: Callable[[int], Any] = lambda i: {}
    whole: str = ""
    name: str = "data.jsonl"
    kept: int = N
    tools: tuple[str, ...] = ()
    note: str = ""

    def write(self, folder: Path) -> str:
        path = folder / self.name
        path.write_text(self.whole or "".join(json.dumps(self.row(i)) + "\n" for i in range(N)), "utf-8", newline="")
        return str(path)


def q(i: int) -> str:
    return f"How is question {i} asked?"


def a(i: int) -> str:
    return f"With answer number {i}."


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


UA = f"U:{q(0)} A:{a(0)}"
LLAMA3 = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"
SHAPES = {
    "a list of texts": Shape(
        f"{UA} U:more of that A:here it is",
        lambda i: {"conversations": [q(i), a(i), "more of that", "here it is"], "source": "s"},
        note="nothing says who speaks",
    ),
    "a list of pairs": Shape(f"{UA} U:x A:y", lambda i: {"conversation": [[q(i), a(i)], ["x", "y"]]}),
    "turns that are lists": Shape(UA, lambda i: {"dialog": [["human", q(i)], ["gpt", a(i)]]}),
    "an object for each side": Shape(UA, lambda i: {"chat": [{"user": q(i)}, {"assistant": a(i)}]}),
    "who speaks is true or false": Shape(
        UA,
        lambda i: {"log": [{"text": q(i), "is_human": True}, {"text": a(i), "is_human": False}]},
    ),
    "questions without labels": Shape(f"U:{q(0)}", lambda i: {"cluster": "c", "turns": [{"content": q(i)}]}),
    "a tree of replies": Shape(
        f"U:{q(0)}",
        lambda i: {
            "prompt": {
                "text": q(i),
                "role": "prompter",
                "replies": [
                    {
                        "text": a(i),
                        "role": "assistant",
                        "replies": [{"text": "and?", "role": "prompter", "replies": []}],
                    }
                ],
            }
        },
    ),
    "single turns of a tree": Shape(
        f"U:{q(0)}",
        whole="".join(
            json.dumps(
                {"message_id": f"{i}{role}", "parent_id": parent, "text": text, "role": role, "tree": i, "tree_id": i}
            )
            + "\n"
            for i in range(N)
            for parent, text, role in ((None, q(i), "prompter"), (f"{i}p", a(i), "assistant"))
        ),
        note="each row is one turn",
    ),
    "a file whose lines are the turns of one session": Shape(
        f"U:{q(0)} C:hm T:42 A:{a(0)}",
        whole="".join(
            json.dumps(line) + "\n"
            for line in [
                {"type": "summary", "summary": "s"},
                {"type": "user", "message": turn("user", q(0)), "sessionId": "s"},
                {
                    "type": "assistant",
                    "sessionId": "s",
                    "message": turn(
                        "assistant",
                        [
                            {"type": "text", "text": "hm"},
                            {"type": "tool_use", "id": "t", "name": "look", "input": {"x": 0.7}},
                        ],
                    ),
                },
                {
                    "type": "user",
                    "sessionId": "s",
                    "message": turn("user", [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]),
                },
                {"type": "assistant", "sessionId": "s", "message": turn("assistant", [{"type": "text", "text": a(0)}])},
            ]
        ),
        kept=1,
    ),
    "reasoning in a column": Shape(
        f"U:{q(0)} A:[thought 0]{a(0)}",
        lambda i: {"Question": q(i), "Complex_CoT": f"thought {i}", "Response": a(i)},
    ),
    "a word about reasoning is no reasoning": Shape(
        UA, lambda i: {"prompt": q(i), "reasoning": "on", "response": a(i)}
    ),
    "calls in a column": Shape(
        f"U:{q(0)} C:",
        lambda i: {
            "query": q(i),
            "answers": json.dumps([{"name": "look", "arguments": {"x": 0.7}}]),
            "tools": json.dumps([SPEC]),
        },
        tools=("look",),
    ),
    "calls as JSON text in turns": Shape(
        f"U:{q(0)} C: T:42 A:{a(0)}",
        lambda i: {
            "messages": [
                user(i) | {"content": q(i)},
                turn("assistant", "", tool_calls=json.dumps([CALL])),
                turn("tool", "42"),
                bot(i) | {"content": a(i)},
            ]
        },
    ),
    "calls whose arguments have another name": Shape(
        f'U:{q(0)} C: T:{{"t":0.7}} A:{a(0)}',
        lambda i: {
            "messages": [
                {"type": "human", "content": q(i)},
                {"type": "ai", "content": "", "tool_calls": [{"name": "look", "args": {"x": 0.7}, "id": "c"}]},
                {"type": "tool", "content": {"t": 0.7}},
                {"type": "ai", "content": a(i), "tool_calls": []},
            ]
        },
    ),
    "items of which some are calls": Shape(
        f"S:Be brief. U:{q(0)} C: T:42 A:{a(0)}",
        lambda i: {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": q(i)}]},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"x": 0.7}'},
                {"type": "function_call_output", "call_id": "c", "output": "42"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": a(i)}]},
            ],
            "tools": [{"type": "function", **SPEC}],
        },
        tools=("look",),
        note="reasoning are left out",
    ),
    "calls and results among parts without a type": Shape(
        f'S:Be brief. U:{q(0)} C: T:{{"t":0.7}} A:{a(0)}',
        lambda i: {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {"role": "user", "parts": [{"text": q(i)}]},
                {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"x": 0.7}}}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"t": 0.7}}}]},
                {"role": "model", "parts": [{"text": a(i)}]},
            ],
            "tools": [{"functionDeclarations": [SPEC]}],
        },
        tools=("look",),
    ),
    "an answer inside a response": Shape(
        UA,
        lambda i: {
            "request": {"body": {"messages": [turn("user", q(i))]}},
            "response": {"body": {"choices": [{"message": turn("assistant", a(i))}]}},
        },
    ),
    "a question beside its history": Shape(
        f"U:{q(0)} A:{a(0)} U:and now? A:that",
        lambda i: {
            "message": "and now?",
            "response": "that",
            "chat_history": [{"role": "USER", "message": q(i)}, {"role": "CHATBOT", "message": a(i)}],
        },
    ),
    "a system text of parts": Shape(
        f"S:Be brief. {UA}",
        lambda i: {
            "system": [{"text": "Be brief."}],
            "messages": [turn("user", [{"text": q(i)}]), turn("assistant", [{"text": a(i)}])],
        },
    ),
    "tools in a system column": Shape(
        f"S: You choose. {UA}",
        lambda i: {
            "system": f"You have these:\n{json.dumps([SPEC])}\n You choose.",
            "conversations": [said("user", q(i)), said("assistant", a(i))],
        },
        tools=("look",),
    ),
    "columns inside an object": Shape(UA, lambda i: {"doc_id": i, "doc": {"question": q(i), "answer": a(i)}}),
    "a query beside an instruction": Shape(
        f"U:Say it.\n\n{q(0)} A:{a(0)}", lambda i: {"instruction": "Say it.", "query": q(i), "response": a(i)}
    ),
    "a passage beside a question": Shape(
        f"U:{q(0)}\n\npassage 0 A:{a(0)}", lambda i: {"context": f"passage {i}", "question": q(i), "answer": a(i)}
    ),
    "tests beside a problem are no talk": Shape(
        f"U:{q(0)}",
        lambda i: {"question_title": f"t{i}", "question_content": q(i), "tests": '[{"input": "1", "output": "2"}]'},
        note="because of its name alone",
    ),
    "a prompt that is a marked chat": Shape(
        UA, lambda i: {"prompt": f"<|im_start|>user\n{q(i)}<|im_end|>\n<|im_start|>assistant\n", "response": a(i)}
    ),
    "the template of Llama 3": Shape(
        f"S:s {UA}",
        lambda i: {
            "text": "<|begin_of_text|>"
            + "".join(map(LLAMA3.format, ("system", "user", "assistant"), ("s", q(i), a(i))))
        },
    ),
    "the template of Llama 2": Shape(
        f"S:s {UA}", lambda i: {"text": f"<s>[INST] <<SYS>>\ns\n<</SYS>>\n\n{q(i)} [/INST] {a(i)} </s>"}
    ),
    "the template of Alpaca": Shape(
        UA,
        lambda i: {"text": f"Below is an instruction.\n\n### Instruction:\n{q(i)}\n\n### Response:\n{a(i)}"},
        note="what stands before the first mark is left out",
    ),
    "a talk step by step": Shape(
        f"U:{q(0)} C: T:42 A:{a(0)}",
        lambda i: {
            "run": {
                "steps": [
                    (whole := [turn("user", q(i)), turn("assistant", None, function_call=CALL["function"])]),
                    [*whole, turn("function", "42"), turn("assistant", a(i))],
                ],
                "function": [SPEC],
            }
        },
        tools=("look",),
        note="each time longer",
    ),
    "several tries": Shape(
        UA,
        lambda i: {"tries": [[turn("user", q(i)), turn("assistant", text)] for text in (a(i), "no")]},
        note="the first is taken",
    ),
    "objects over several lines": Shape(
        UA, whole="\n".join(json.dumps({"prompt": q(i), "completion": a(i)}, indent=2) for i in range(N))
    ),
    "the rows of a viewer": Shape(
        UA,
        whole=json.dumps(
            {
                "features": [{"name": "messages", "type": {}}],
                "rows": [{"row": {"messages": [turn("user", q(i)), turn("assistant", a(i))]}} for i in range(N)],
            }
        ),
        name="data.json",
    ),
}


def told(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls", [])
    assert all(call["function"] == {"name": "look", "arguments": {"x": 0.7}} for call in calls)
    reasoning = f"[{message['reasoning']}]" if "reasoning" in message else ""
    return f"{'C' if calls else LETTERS[message['role']]}:{reasoning}{message['content']}"


@pytest.mark.parametrize("shape", SHAPES)
def test_what_inspect_writes_gives_the_talk_that_a_person_reads(shape: str, tmp_path: Path) -> None:
    wanted = SHAPES[shape]
    found = inspect(Source(files=wanted.write(tmp_path)))
    text = yaml_text(found.declaration, found.proposal.notes)
    assert wanted.note in text and (wanted.note or "#" not in text.split("\n", 1)[1]), text
    declaration = yaml.safe_load(text)
    assert extract(declaration, tmp_path).unseen == []
    declaration["schema"]["keep"] = "each_user"  # to see the answers too
    result = extract(declaration, tmp_path)
    assert result.kept == wanted.kept and not result.rejects, (text, result)
    talks = [" ".join(map(told, record["messages"])) for record in result.records]
    assert wanted.talk in talks, text
    assert all(
        tuple(spec["function"]["name"] for spec in record["tools"] or ()) == wanted.tools for record in result.records
    )


NOTHING = {
    "columns": ('{"question": ["a b", "c d"], "answer": ["e", "f"]}', "one object of columns (question, answer)"),
    "columns by number": ('{"question": {"0": "a b", "1": "c d"}, "answer": {"0": "e", "1": "f"}}', "orient='records'"),
    "a split table": ('{"columns": ["question"], "index": [0], "data": [["a b"]]}', "rows: 'data[*]'"),
    "turns as columns": (
        '[{"talk": {"from": ["human", "gpt"], "value": ["a", "b"]}}]',
        "`talk` holds a list for each key",
    ),
    "speakers nobody knows": (
        json.dumps([{"log": f"Guest: hello {i}\nHost: yes\nGuest: why"} for i in range(N)]),
        "split: {user: 'Guest:', assistant: 'Host:'}",
    ),
    "answers to questions that are elsewhere": (
        json.dumps([{"question_id": i, "choices": [{"turns": [a(i), a(i)]}]} for i in range(N)]),
        "the keys above",
    ),
    "text that nobody asked for": (
        json.dumps([{"text": f"page {i}", "meta": {"n": i}} for i in range(N)]),
        "the keys above",
    ),
}


@pytest.mark.parametrize("case", NOTHING)
def test_where_nothing_is_proposed_the_error_says_what_is_there(case: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(NOTHING[case][0], encoding="utf-8")
    outcome = CliRunner().invoke(app, [str(path)])
    assert isinstance(outcome.exception, DataError)
    assert NOTHING[case][1] in str(outcome.exception) and "data.json" in str(outcome.exception)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"question": "Gericht hei\u00dft so?"}\n'.encode("latin-1"), "iconv -f LATIN1"),
        (b"\n \n", "it holds none"),
        (b'{"a": ' * 3000 + b"1" + b"}" * 3000 + b"\n", "nested_too_deep"),
    ],
)
def test_rows_that_cannot_be_read_are_named_with_the_way_out(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match="no row can be read") as failure:
        inspect(Source(files=str(path)))
    assert words in str(failure.value) and failure.value.file == str(path)


def test_links_in_a_circle_and_names_that_are_no_id(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for name, words in (("one", "leads nowhere"), ("none", "no such file")):
        outcome = CliRunner().invoke(app, [str(tmp_path / name)])
        assert isinstance(outcome.exception, DataError) and words in str(outcome.exception)
    assert "no such file" in str(CliRunner().invoke(app, ["../none"]).exception)


def test_long_texts_take_time_that_grows_with_them(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    for text in ("s" * 300_000, "\n" * 300_000, " [" * 150_000, "Note: a\n" * 40_000):
        begun = time.process_time()
        for row in ({"messages": [turn("system", text), turn("user", "q"), turn("assistant", text)]}, {"text": text}):
            path.write_text(json.dumps(row) + "\n", encoding="utf-8")
            inspect(Source(files=str(path)))
        assert time.process_time() - begun < 5  # 0.1 s; squared, minutes


def test_signs_that_yaml_cannot_hold_stay_out_of_the_comments(tmp_path: Path) -> None:
    parts = [{"type": "\x00\ufffe", "x": "y"}, {"type": "text", "text": "hello there"}]
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"messages": [turn("user", parts), turn("assistant", "yes")]}) + "\n", encoding="utf-8")
    found = inspect(Source(files=str(path)))
    assert "?? 1" in found.proposal.notes[0].replace("\x00\ufffe", "??")
    assert yaml.safe_load(yaml_text(found.declaration, found.proposal.notes)) == found.declaration
