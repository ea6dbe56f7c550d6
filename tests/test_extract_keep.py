"""Which part of a conversation is kept, and what makes two rows the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from extracting import Extracted, chat, extract

TRACE = chat(
    ("system", "s"), ("assistant", "hello"), ("user", "u1"), ("assistant", "a1"), ("tool", "t1"),
    ("assistant", "a2"), ("user", "u2"), ("assistant", "a3"), ("tool", "t2"), ("assistant", "a4"),
)  # fmt: skip


def kept(tmp_path: Path, keep: str, turns: list[dict[str, Any]] = TRACE, **more: Any) -> Extracted:
    return extract(tmp_path, f"{{turns: {{each: t}}, keep: {keep}}}", {"t": turns}, **more)


@pytest.mark.parametrize(
    ("keep", "count"),
    [("to_last_user", 7), ("to_last_input", 9), ("each_user", 10), ("full", 10), ("{users: 1}", 3), ("{users: 2}", 7)],
)
def test_prefixes(tmp_path: Path, keep: str, count: int) -> None:
    assert kept(tmp_path, keep).messages == [TRACE[:count]]


def test_first_user_keeps_system_turns_before_it_only(tmp_path: Path) -> None:
    assert kept(tmp_path, "first_user").only == [("system", "s"), ("user", "u1")]


def test_full_ends_with_the_last_answer(tmp_path: Path) -> None:
    assert kept(tmp_path, "full", TRACE[:9]).messages == [TRACE[:8]]
    assert kept(tmp_path, "full", chat(("user", "u"))).rejects == {"no_assistant_turn": 1}
    greeting = chat(("assistant", "hello"), ("user", "u"))
    assert kept(tmp_path, "full", greeting).rejects == {"no_user_turn": 1}, "the only question is cut off"


def test_too_few_user_turns_are_a_reject(tmp_path: Path) -> None:
    assert kept(tmp_path, "{users: 3}").rejects == {"too_few_user_turns": 1}


@pytest.mark.parametrize(
    ("declared", "count"),
    [
        ({"turns": {"each": "t"}}, 7),
        ({"turns": {"each": "t"}, "answer": "dataset"}, 10),
        ({"prompt": "t[role=user].content"}, 1),
        ({"turns": {"each": "t"}, "keep_resolved": "first_user"}, 2),
    ],
)
def test_the_default_follows_from_the_declaration(tmp_path: Path, declared: dict[str, Any], count: int) -> None:
    more = {key: declared[key] for key in ("answer", "keep_resolved") if key in declared}
    schema = {key: value for key, value in declared.items() if key not in more}
    assert len(extract(tmp_path, schema, {"t": TRACE}, **more).messages[0]) == count


def test_steps_are_cuts_before_turns_of_the_assistant(tmp_path: Path) -> None:
    every = kept(tmp_path, "{steps: 9}")
    assert [len(row) for row in every.messages] == [3, 5, 7, 9], "each ends with something to answer"
    assert all(row == TRACE[: len(row)] for row in every.messages)
    two = kept(tmp_path, "{steps: 2}")
    assert len(two.messages) == 2
    assert set(two.ids) < set(every.ids)
    one = kept(tmp_path, "{steps: 1}")
    assert set(one.ids) < set(two.ids), "a larger number takes more, never others"
    assert two.duplicates == 0
    assert kept(tmp_path, "{steps: 2}", chat(("user", "u"))).rejects == {"no_assistant_turn": 1}


# -- duplicates, ids ------------------------------------------------------------------------------


def pair(user: str, answer: str = "a", **more: Any) -> dict[str, Any]:
    return {"t": chat(("system", more.pop("system", "s")), ("user", user), ("assistant", answer)), **more}


def test_the_duplicate_key_is_the_user_turns_and_tools_never_the_system_text(tmp_path: Path) -> None:
    rows = [
        pair("one"),
        pair("one", system="other"),
        pair("one", "another answer"),
        pair("two"),
        pair("one", tools=[{"name": "f"}]),
    ]
    got = extract(tmp_path, "{turns: {each: t}, tools: tools}", *rows)
    assert (len(got.messages), got.duplicates) == (3, 2)


def test_the_survivor_does_not_depend_on_the_order(tmp_path: Path) -> None:
    rows = [pair("one", answer, system=answer) for answer in "abcdefg"]
    schema = "{turns: {each: t}, keep: full}"
    assert extract(tmp_path, schema, *rows).messages == extract(tmp_path, schema, *rows[::-1]).messages


def test_declared_duplicate_keys(tmp_path: Path) -> None:
    rows = [
        pair("a", k=1, l=1),
        pair("b", k=1, l=2),
        pair("c", k=1, l=2),
        pair("d"),
        pair("e"),
        pair("f", k=None, l=""),
    ]
    assert extract(tmp_path, "{turns: {each: t}, dedup: k}", *rows).duplicates == 2
    assert extract(tmp_path, "{turns: {each: t}, dedup: [k, l]}", *rows).duplicates == 1
    numbers = [pair(f"n{i}", k=k) for i, k in enumerate([1, 1.0, True, "1", [0, -0.0], [0.0, 0]])]
    assert extract(tmp_path, "{turns: {each: t}, dedup: k}", *numbers).duplicates == 2, "1.0 is 1; true and '1' are not"
    same = [pair("a")] * 3
    assert extract(tmp_path, "{turns: {each: t}, dedup: none}", *same).duplicates == 0
    assert extract(tmp_path, "{turns: {each: t}}", *same).duplicates == 2


def test_ids_are_declared_or_hashes_of_the_content(tmp_path: Path) -> None:
    rows = [pair("a", k="x"), pair("b", k=7), pair("c")]
    got = extract(tmp_path, "{turns: {each: t}, id: k}", *rows)
    assert got.ids[:2] == ["x", "7"]
    assert len(got.ids[2]) == 32
    hashed = extract(tmp_path, "turns: {each: t}", *rows)
    moved = extract(tmp_path, "turns: {each: t}", *rows[::-1])
    assert hashed.ids == moved.ids[::-1], "never the position"
    assert hashed.ids == extract(tmp_path, "{turns: {each: t}, keep: first_user}", *rows).ids, "nor what is kept"
