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
