"""What happens to a row before its turns: decode, where, join, last_of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from extracting import chat, extract

TURNS = "turns: {each: t}"
T = chat(("user", "q"))


def row(user: str = "q", **more: Any) -> dict[str, Any]:
    return {"t": chat(("user", user)), **more}


def test_decode_at_every_level(tmp_path: Path) -> None:
    inner = [json.dumps(turn) for turn in T]
    got = extract(tmp_path, "{turns: {each: body.t}, decode: [body, 'body.t[*]']}", {"body": json.dumps({"t": inner})})
    assert got.only == [("user", "q")]


def test_decode_reads_python_literals_and_counts_them(tmp_path: Path) -> None:
    got = extract(
        tmp_path,
        f"{{{TURNS}, decode: t}}",
        {"t": str(T)},
        {"t": chat(("user", "as it is"))},
        {"t": ""},
        {"t": json.dumps(T)},
    )
    assert got.notes["python_literals"] == 1
    assert len(got.messages) + got.duplicates == 3
    assert got.rejects == {"no_user_turn": 1}


def test_decode_reads_what_python_writes_for_no_number(tmp_path: Path) -> None:
    text = json.dumps({"t": T, "x": [float("nan"), float("-inf"), 0.7]})
    got = extract(
        tmp_path, "{turns: {each: b.t}, decode: b, where: '@.b.x[0] == null && @.b.x[1] == null'}", {"b": text}
    )
    assert (got.only, got.notes["python_literals"]) == ([("user", "q")], 0), "as in rows"


@pytest.mark.parametrize(
    "text",
    ["{bad", '{"x": 1e999}', "{'x': 1e999}", "__import__('os')", "{'a': {1}}", "{1: 2}", "-" * 50_000 + "1", "(" * 300],
)
def test_what_does_not_decode_is_a_reject(tmp_path: Path, text: str) -> None:
    assert extract(tmp_path, f"{{{TURNS}, decode: t}}", {"t": text}).rejects == {"cannot_decode": 1}


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("'@.a == 1'", [1]),
        ("{a: 1}", [1]),
        ("{a: true}", [2]),
        ("{a: '1'}", [3]),
        ("{a: null}", [4, 5, 6]),
        ("{a: ''}", [4, 5, 6]),
        ("{a: 1, b: 2}", []),
        ("{a: 1.0}", [1]),
        ("'@.a'", [1, 2, 3, 4, 6]),
    ],
)
def test_where(tmp_path: Path, where: str, kept: list[int]) -> None:
    values: list[dict[str, Any]] = [{"a": 1}, {"a": True}, {"a": "1"}, {"a": None}, {}, {"a": ""}]
    rows = [row(str(i), **value) for i, value in enumerate(values, 1)]
    got = extract(tmp_path, f"{{{TURNS}, where: {where}}}", *rows)
    assert [conversation[0][1] for conversation in got.conversations] == [str(i) for i in kept]
    assert got.filtered == ({"where": 6 - len(kept)} if len(kept) < 6 else {})


def test_where_may_find_its_type_late(tmp_path: Path) -> None:
    rows = [row(f"q{i}", a="1" if i < 250 else 1) for i in range(252)]
    assert len(extract(tmp_path, f"{{{TURNS}, where: {{a: 1}}}}", *rows, checked=True).messages) == 2


JOIN = "join: {rows: \"@.type == 'response' && @.status == 200\", on: id, as: response}"


def request(number: int, task: str = "x") -> dict[str, Any]:
    return {"type": "request", "id": f"r{number}", "task": task, "t": chat(("user", f"q{number}"))}


def response(number: int, status: int = 200) -> dict[str, Any]:
    return {"type": "response", "id": f"r{number}", "status": status, "text": f"a{number}"}


def test_join_puts_the_partner_under_a_key(tmp_path: Path) -> None:
    schema = f"""{{where: "@.type == 'request'", {JOIN}, keep: full,
        turns: [{{each: t}}, {{role: {{as: assistant}}, text: response.text}}]}}"""
    rows = [response(2), request(1), request(2), response(1), request(3), request(4), response(4, 429)]
    got = extract(tmp_path, schema, *rows)
    assert got.conversations == [[("user", f"q{n}"), ("assistant", f"a{n}")] for n in (1, 2)]
    assert got.filtered == {"join": 2, "where": 3}


def test_numbers_are_joined_by_value(tmp_path: Path) -> None:
    got = extract(tmp_path, f"{{{TURNS}, {JOIN}}}", {**request(1), "id": 1.0}, {**response(1), "id": 1})
    assert got.only == [("user", "q1")]


def test_bare_on_is_a_key_though_yaml_reads_true(tmp_path: Path) -> None:
    got = extract(tmp_path, f"{{{TURNS}, {JOIN}, where: {{type: request}}}}", request(1), response(1))
    assert got.only == [("user", "q1")]


def test_last_of_keeps_the_last_row_of_a_group(tmp_path: Path) -> None:
    rows = [request(1, "a"), request(2, "b"), request(3, "a"), {"t": chat(("user", "alone"))}]
    got = extract(tmp_path, f"{{{TURNS}, last_of: task}}", *rows)
    assert [row[0][1] for row in got.conversations] == ["q2", "q3", "alone"]
    assert got.filtered == {"last_of": 1}


def test_last_of_looks_at_rows_that_where_and_join_left(tmp_path: Path) -> None:
    rows = [request(1, "a"), response(1), request(2, "a"), response(2), request(3, "a"), response(3, 500)]
    got = extract(tmp_path, f"{{{TURNS}, {JOIN}, last_of: task, where: {{type: request}}}}", *rows)
    assert got.only == [("user", "q2")]
    assert got.filtered == {"where": 3, "join": 1, "last_of": 1}


def test_meta_is_carried_and_groups_default_to_the_duplicate_key(tmp_path: Path) -> None:
    got = extract(tmp_path, f"{{{TURNS}, meta: {{lang: lang, all: 'x[*]'}}}}", row("a", lang="en", x=[1, 2]), row("b"))
    assert len(got.messages) == 2
