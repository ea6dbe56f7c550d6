"""Properties of extract on made-up rows: nothing crashes, nothing is lost, the order of rows changes nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from extracting import extract
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftmill.extract.literals import literal, loads
from draftmill.extract.texts import to_text

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ROLES = st.sampled_from(["user", "assistant", "system", "tool", "human", "gpt"])
TURN = st.fixed_dictionaries(
    {"role": ROLES, "content": TEXT | st.none() | st.lists(TEXT, max_size=2)},
    optional={"tool_calls": st.just([{"name": "f", "arguments": {}}]), "extra": JSON},
)
ROW = st.fixed_dictionaries({"t": st.lists(TURN, max_size=6)}, optional={"x": JSON})
SCHEMAS = st.sampled_from(
    [
        {"turns": {"each": "t"}},
        {"turns": {"each": "t"}, "keep": "full"},
        {"turns": {"each": "t", "parts": "placeholder", "take": "first"}, "dedup": "none"},
        {"turns": {"each": "t"}, "keep": {"steps": 2}},
        {"turns": [{"each": "t"}, {"role": {"as": "user"}, "text": ["x.y", "t[0].content"]}], "id": "x"},
        {"prompt": "t[role=user].content", "tools": "x"},
        {"turns": {"each": "t", "pairs": {"user": "content", "assistant": ["extra", "content"]}}, "decode": "x"},
        {"turns": {"each": "t", "text": "content", "split": {"user": "a", "assistant": "b", "at": "any"}}},
        {"turns": {"each": "t", "tool_calls": {"each": "extra", "name": "a", "arguments": "b"}}, "system": "x"},
        {"turns": {"each": "t", "role": {"@.content": "user", "else": "tool"}}, "tools": {"from": "system"}},
        {"turns": {"each": "t"}, "join": {"rows": "@.x == 1", "on": "x", "as": "y"}, "last_of": "x", "dedup": "x"},
    ]
)


def run(schema: dict[str, Any], rows: list[Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return extract(Path(folder), schema, *rows)  # asserts that every row ends in exactly one counter


@QUICK
@given(SCHEMAS, st.lists(st.one_of(ROW, JSON), min_size=1, max_size=6))
def test_any_rows_end_in_a_counter(schema: dict[str, Any], rows: list[Any]) -> None:
    got = run(schema, rows)
    for messages in got.messages:
        assert any(message["role"] == "user" for message in messages)
        assert all(message["content"] or message.get("tool_calls") or message["role"] == "tool" for message in messages)


@QUICK
@given(SCHEMAS, st.lists(ROW, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(schema: dict[str, Any], rows: list[Any], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    one, other = run(schema, rows), run(schema, shuffled)
    assert (one.rejects, one.duplicates) == (other.rejects, other.duplicates)
    key = json.dumps
    assert sorted(map(key, zip(one.messages, one.tools, strict=True))) == sorted(
        map(key, zip(other.messages, other.tools, strict=True))
    )


@QUICK
@given(JSON)
def test_json_texts_are_read_exactly(value: Any) -> None:
    assert json.dumps(loads(json.dumps(value))) == json.dumps(value)


@QUICK
@given(JSON.filter(lambda value: isinstance(value, list | dict)))
def test_python_literals_are_read_exactly(value: Any) -> None:
    assert literal(repr(value)) == value


@QUICK
@given(st.lists(TEXT | st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=5))
def test_parts_are_joined_as_they_are(parts: list[Any]) -> None:
    assert to_text(parts, "reject") == "".join(part if isinstance(part, str) else part["text"] for part in parts)
