"""Keys and lists that look like something else: what inspect takes them for, and that a record comes out right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from declared import extract, roles, user_texts
from forms import ROWS, bot, user

from draftmill.extract import Source
from draftmill.inspect import Inspection, inspect

TWO = ["user", "assistant"]
TASK = {"source": "user", "task": {"instruction": "You are Bob."}}


def inspected(folder: Path, rows: list[Any], name: str = "data.json") -> Inspection:
    path = folder / name
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(json.dumps(rows) if name.endswith(".json") else lines, encoding="utf-8")
    return inspect(Source(files=str(path)))


def spoken(speaker: str, text: str) -> dict[str, Any]:
    return {"speaker": speaker, "utterance": text}


Case = tuple[Callable[[int], Any], dict[str, Any], list[str], str]
CASES: dict[str, Case] = {
    "a system that answers": (
        lambda i: {"turns": [spoken("USER", f"any room {i}?"), spoken("SYSTEM", "one"), spoken("USER", "book it")]},
        {
            "turns": {"each": "turns", "role": "speaker", "text": "utterance"},
            "roles": {"USER": "user", "SYSTEM": "assistant"},
        },
        [*TWO, "user"],
        "taken for the assistant",
    ),
    "a system that only begins": (
        lambda i: {"turns": [{"role": "system", "content": "Be brief."}, user(i)]},
        {"turns": {"each": "turns"}},
        ["system", "user"],
        "",
    ),
    "a system text in the first turn": (
        lambda i: {"messages": [{**user(i), "system": "Be brief."}, {**bot(i), "system": None}]},
        {"turns": {"each": "messages"}, "system": "messages[0].system"},
        ["system", *TWO],
        "",
    ),
    "a list of turns in an element is no text of it": (
        lambda i: {"info": TASK, "traj": [user(i), bot(i)]},
        {"turns": {"each": "traj"}},
        TWO,
        "",
    ),
    "a text inside an object": (
        lambda i: {"messages": [user(i), {**bot(i), "content": {"answer": "it is so"}}]},
        {"turns": {"each": "messages", "text": ["content.answer", "content"]}},
        TWO,
        "",
    ),
    "turns that only think": (
        lambda i: {"messages": [user(i), {**bot(9), "channel": "analysis"}, {**bot(i), "channel": "final"}]},
        {
            "turns": {
                "each": "messages",
                "role": {
                    '@.channel == "analysis"': "drop",
                    '@.role == "user"': "user",
                    '@.role == "assistant"': "assistant",
                },
            }
        },
        TWO,
        "analysis 6 are left out",
    ),
    "the name of a template": (
        lambda i: {"prompt": "default", "problem": f"what is {i}?", "response": f"it is {i + 1} of all"},
        {"turns": [{"role": {"as": "user"}, "text": "problem"}, {"role": {"as": "assistant"}, "text": "response"}]},
        TWO,
        "",
    ),
    "one instruction for all questions": (
        lambda i: {"instruction": "Be a doctor.", "question": f"what is {i}?", "output": f"it is {i + 1} of all"},
        {
            "turns": [
                {"role": {"as": "user"}, "text": {"join": ["instruction", "question"], "by": "\n\n"}},
                {"role": {"as": "assistant"}, "text": "output"},
            ]
        },
        TWO,
        "",
    ),
    "calls and results among parts, called otherwise": (
        lambda i: {
            "messages": [
                user(i),
                {
                    "role": "assistant",
                    "content": [{"type": "tool-call", "toolCallId": "c", "toolName": "f", "args": {}}],
                },
                {
                    "role": "tool",
                    "content": [{"type": "tool-result", "toolCallId": "c", "toolName": "f", "result": "42"}],
                },
                bot(i),
            ]
        },
        {
            "turns": {
                "each": "messages",
                "parts": "drop",
                "tool_calls": {
                    "each": "content[type='tool-call']",
                    "id": "toolCallId",
                    "name": "toolName",
                    "arguments": "args",
                },
                "role": {
                    "@.content[?@.type == 'tool-result']": "tool",
                    '@.role == "user"': "user",
                    '@.role == "assistant"': "assistant",
                    '@.role == "tool"': "tool",
                },
                "text": ["content[type='tool-result'].result", "content"],
            }
        },
        ["user", "assistant", "tool", "assistant"],
        "",
    ),
    "a call and its result in one part": (
        lambda i: {
            "messages": [
                user(i),
                {"role": "assistant", "content": [{"type": "tool-f", "toolCallId": "c", "input": {}, "output": "42"}]},
                bot(i),
            ]
        },
        {"turns": {"each": "messages", "parts": "drop"}},
        TWO,
        "tool-f 6",
    ),
    "calls with their results inside": (
        lambda i: {
            "messages": [
                user(i),
                {
                    **bot(9),
                    "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {}}],
                    "seen": ["42"],
                },
                bot(i),
            ]
        },
        {
            "turns": {
                "each": "messages",
                "tool_calls": {
                    "each": "tool_calls",
                    "id": "tool_call_id",
                    "name": "function_name",
                    "arguments": "arguments",
                },
            }
        },
        [*TWO, "assistant"],
        "6 calls have no result after them",
    ),
    "the newest turn first": (
        lambda i: {"messages": [bot(8), user(7), bot(9), user(i)]},
        {"turns": {"each": "messages"}},
        TWO[::-1] * 2,
        "if the newest turn stands first",
    ),
    "texts that say who speaks": (
        lambda i: {"dialog": [f"User: what is {i}?", "Bot: it is so", "User: why is it?"]},
        {"turns": {"each": "dialog", "split": {"user": "User:", "assistant": "Bot:", "at": "line"}}},
        [*TWO, "user"],
        "",
    ),
    "prompts as JSON text": (
        lambda i: {"prompt": json.dumps([f"what is {i}?", "and then?"]), "response_a": json.dumps(["a", "b"])},
        {"prompt": "prompt[*]", "keep": "each_user", "decode": ["prompt"]},
        ["user", "user"],
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_taken_for_what_it_is(case: str, tmp_path: Path) -> None:
    row, schema, expected, note = CASES[case]
    found = inspected(tmp_path, [row(i) for i in ROWS])
    assert found.proposal.schema == schema and note in " ".join(found.proposal.notes)
    found.declaration["schema"]["keep"] = "each_user"  # to see the answers too
    result = extract(found.declaration, tmp_path)
    assert result.kept == len(ROWS) and result.unseen == []
    assert {tuple(roles(record)) for record in result.records} == {tuple(expected)}
    assert all(user_texts(record)[0].strip("[") == user_texts(record)[0] for record in result.records)


def test_numbers_of_turns_are_no_speakers(tmp_path: Path) -> None:
    rows = [{"log": [{"no": n, "by": f"p{n % 2}", "says": f"some words {i}"} for n in range(3)]} for i in ROWS]
    found = inspected(tmp_path, rows).proposal
    assert found.schema == {"turns": {"each": "log", "role": "by", "text": "says"}}
    assert "{p0: user, p1: assistant}" in found.notes[0]


def test_what_all_turns_say_alike_is_no_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": {"value": "hello there"}}]
    turns = [{"object": "thread.message", "role": role, "content": parts} for role in TWO]
    assert inspected(tmp_path, [{"data": turns, "n": i} for i in ROWS]).proposal.schema is None


def test_what_stands_beside_the_rows_is_named(tmp_path: Path) -> None:
    document = {
        "Definition": ["Answer in one sentence."],
        "version": "1 b",
        "tasks": [{"input": f"q {i}"} for i in ROWS],
    }
    path = tmp_path / "data.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    found = inspect(Source(files=str(path))).proposal
    assert found.rows == "tasks[*]" and [note.split()[0] for note in found.notes] == ["`Definition`"]
