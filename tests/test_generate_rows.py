"""Which rows are asked, and what the target is led through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftmill.errors import ConfigError
from draftmill.generate.dialogue import Dialogue, cut
from draftmill.generate.quota import Quota, parse, select, within_tokens

IDS = [f"row{i:04d}" for i in range(2000)]


def chosen(quota: Quota, ids: list[str] = IDS, cap: int | None = None) -> set[str]:
    return {ids[i] for i in select(ids, None, quota, seed=0, dataset="d", cap=cap)}


@pytest.mark.parametrize(
    ("value", "quota"),
    [
        (3572, Quota(rows=3572)),
        ("all", Quota()),
        ({"fraction": 0.1}, Quota(fraction=0.1)),
        ({"tokens": "5M"}, Quota(tokens=5_000_000)),
        ({"tokens": "1.5k"}, Quota(tokens=1500)),
        ({"tokens": 12}, Quota(tokens=12)),
        ({"rows": 3, "by": "category"}, Quota(rows=3, by="category")),
    ],
)
def test_forms_of_a_quota(value: Any, quota: Quota) -> None:
    assert parse(value, file="f", key="quota") == quota


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("some", "not a quota"),
        (True, "not a quota"),
        ({"rows": 1, "tokens": 2}, "exactly one"),
        ({"by": "x"}, "exactly one"),
        ({"fracton": 0.1}, "did you mean 'fraction'"),
        ({"fraction": 1.5}, "not an amount"),
        ({"tokens": "5X"}, "not an amount"),
        ({"rows": -1}, "not an amount"),
    ],
)
def test_what_is_no_quota(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(value, file="f", key="quota")


def test_a_larger_quota_keeps_the_smaller_one() -> None:
    assert chosen(Quota(rows=100)) < chosen(Quota(rows=300)) < chosen(Quota())
    assert chosen(Quota(fraction=0.1)) == chosen(Quota(rows=200))
    assert chosen(Quota(rows=300), cap=100) == chosen(Quota(rows=100))


def test_rows_added_to_the_source_push_few_out() -> None:
    grown = IDS + [f"new{i}" for i in range(20)]
    assert len(chosen(Quota(rows=500)) & chosen(Quota(rows=500), sorted(grown))) >= 490


def test_a_quota_inside_strata() -> None:
    strata = ["ab"[i % 10 == 0] for i in range(2000)]
    taken = select(IDS, strata, Quota(rows=50, by="c"), seed=0, dataset="d", cap=None)
    assert sum(strata[i] == "b" for i in taken) == 50 and len(taken) == 100


@given(st.lists(st.integers(0, 50)), st.integers(0, 200))
def test_a_token_quota_takes_the_shortest_prefix_that_reaches_it(counts: list[int], tokens: int) -> None:
    kept = within_tokens(counts, tokens)
    assert sum(counts[:kept]) >= tokens or kept == len(counts)
    assert kept == 0 or sum(counts[: kept - 1]) < tokens


def say(role: str, content: str = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, identity: str = "c", **arguments: Any) -> dict[str, Any]:
    made = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
    return say("assistant", "", tool_calls=[made])


TALK = [
    say("system"),
    say("user", "1"),
    say("assistant"),
    say("user", "2"),
    say("assistant"),
    say("tool"),
    say("assistant"),
]


@pytest.mark.parametrize(
    ("keep", "length"),
    [("first_user", 2), ("to_last_user", 4), ("to_last_input", 6), ({"users": 1}, 2), ({"steps": 2}, 6), ("full", 6)],
)
def test_what_the_target_is_shown(keep: Any, length: int) -> None:
    assert cut(TALK, keep) == TALK[:length]
    assert cut(cut(TALK, keep), keep) == TALK[:length], "extract may have cut already"
    dialogue = Dialogue(TALK, None, keep)
    dialogue.take(say("assistant", "mine"))
    assert not dialogue.open and dialogue.generated == [length] and dialogue.said[-1]["content"] == "mine"


def test_without_a_user_turn_nothing_is_asked() -> None:
    assert not Dialogue([say("system"), say("assistant")], None, "first_user").open
    assert not Dialogue([say("user", " \n")], None, "each_user").open


def test_the_target_answers_every_user_turn_with_its_own_history() -> None:
    dialogue = Dialogue(
        [say("user", "1"), say("assistant", "theirs"), say("user", "2"), say("assistant", "theirs")], None, "each_user"
    )
    answers = []
    while dialogue.open:
        answers.append([message["content"] for message in dialogue.said])
        dialogue.take(say("assistant", f"mine {len(answers)}"))
    assert answers == [["1"], ["1", "mine 1", "2"]]
    assert dialogue.generated == [1, 3] and dialogue.ended is None


RECORDED = [
    say("user", "1"),
    call("f", "old", x=1),
    say("tool", "42", tool_call_id="old"),
    say("assistant", "done"),
    say("user", "2"),
]


def test_a_recorded_tool_result_is_replayed_for_the_same_call() -> None:
    dialogue = Dialogue(RECORDED, [], "each_user")
    dialogue.take(call("f", "new", x=1))
    assert dialogue.open and dialogue.said[-1] == say("tool", "42", tool_call_id="new")
    dialogue.take(say("assistant", "it is 42"))
    assert dialogue.open and dialogue.said[-1]["content"] == "2"
    dialogue.take(say("assistant", "bye"))
    assert not dialogue.open and dialogue.ended is None and dialogue.generated == [1, 3, 5]


@pytest.mark.parametrize("made", [call("g", x=1), call("f", x=2)])
def test_another_call_ends_the_conversation(made: dict[str, Any]) -> None:
    dialogue = Dialogue(RECORDED, [], "each_user")
    dialogue.take(made)
    assert not dialogue.open and dialogue.ended == "diverged" and dialogue.said[-1] == made


def test_an_answer_in_place_of_a_recorded_call_goes_on_with_the_next_user_turn() -> None:
    dialogue = Dialogue(RECORDED, [], "each_user")
    dialogue.take(say("assistant", "I know it: 42"))
    assert dialogue.said[-1]["content"] == "2"


def test_an_end_takes_back_what_was_not_answered() -> None:
    dialogue = Dialogue(RECORDED, [], "each_user")
    dialogue.take(say("assistant", "a"))
    dialogue.end("truncated")
    assert not dialogue.open and dialogue.ended == "truncated" and dialogue.said[-1]["content"] == "a"
