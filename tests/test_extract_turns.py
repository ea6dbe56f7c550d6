"""How elements of a row become turns: each, role, text, parts, take, pairs, split, prompt, system, roles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from extracting import chat, extract

FULL = "keep: full"
Q, A = ("user", "q"), ("assistant", "a")


def test_the_plain_form(tmp_path: Path) -> None:
    got = extract(tmp_path, "turns: {each: messages}", {"messages": chat(("system", "s"), Q, A, ("user", "q2"), A)})
    assert got.only == [("system", "s"), Q, A, ("user", "q2")]


def test_every_known_label(tmp_path: Path) -> None:
    labels = {
        "user": ["human", "user"],
        "assistant": ["gpt", "ai", "assistant", "model", "bot", "chatgpt", "bard", "bing"],
        "system": ["system", "developer"],
        "tool": ["tool", "function", "observation", "ipython", "environment"],
    }
    for role, names in labels.items():
        for name in names:
            got = extract(
                tmp_path,
                "{turns: {each: t, role: from, text: value}, keep: each_user}",
                {"t": chat(("human", "q"), (name, "x"), role="from", text="value")},
            )
            assert got.only[1] == (role, "x")


def test_declared_labels_are_merged_over_the_known_ones(tmp_path: Path) -> None:
    schema = "{turns: {each: t}, keep: each_user, roles: {critic: drop, planner: assistant, user: system}}"
    got = extract(tmp_path, schema, {"t": chat(("critic", "c"), ("planner", "p"), ("user", "u"), ("human", "h"))})
    assert got.only == [("assistant", "p"), ("system", "u"), ("user", "h")]


def test_labels_need_not_be_texts(tmp_path: Path) -> None:
    got = extract(
        tmp_path, "{turns: {each: t}, keep: full, roles: {0: user, 1: assistant}}", {"t": chat((0, "q"), (1, "a"))}
    )  # type: ignore[arg-type]
    assert got.only == [Q, A]


def test_the_place_of_a_turn_may_say_who_speaks(tmp_path: Path) -> None:
    schema = "{turns: {each: t, role: {as: [user, assistant, drop]}, text: x}, keep: each_user}"
    got = extract(tmp_path, schema, {"t": ["one", "two", "three", {"x": "four"}, "", "six", "seven"]})
    assert got.only == [("user", "one"), ("assistant", "two"), ("user", "four"), ("user", "seven")]


def test_turns_may_be_lists_if_the_role_is_an_element(tmp_path: Path) -> None:
    schema = "{turns: {each: t, role: '[0]', text: '[1]'}, keep: each_user}"
    got = extract(tmp_path, schema, {"t": [["human", "q"], ["gpt", "a"], ["tool", {"t": 0.7}]]})
    assert got.only == [Q, A, ("tool", '{"t":0.7}')]
    for role in ("role", "{as: user}", "{else: user}"):
        rejected = extract(tmp_path, f"{{turns: {{each: t, role: {role}}}}}", {"t": [["human", "q"]]}).rejects
        assert rejected == {"turn_is_a_list": 1}


def test_what_a_tool_returned_may_be_an_object(tmp_path: Path) -> None:
    turns = [*chat(Q), {"role": "tool", "content": {"t": 0.7, "n": None}}, {"role": "tool", "content": {"text": "x"}}]
    got = extract(tmp_path, "{turns: {each: t}, keep: each_user}", {"t": turns})
    assert got.only == [Q, ("tool", '{"t":0.7,"n":null}'), ("tool", "x")]
    assert extract(tmp_path, "{turns: {each: t}}", {"t": chat(("user", {"t": 1}))}).rejects == {"other_part": 1}  # type: ignore[arg-type]


def test_each_spreads_a_list_one_level_and_takes_other_matches_as_turns(tmp_path: Path) -> None:
    row = {"head": {"role": "user", "content": "one"}, "rest": chat(A, ("user", "two")), "deep": [chat(("user", "x"))]}
    got = extract(tmp_path, "{turns: [{each: head}, {each: rest}]}", row)
    assert got.only == [("user", "one"), A, ("user", "two")]
    assert extract(tmp_path, "{turns: {each: deep}}", row).rejects == {"turn_is_a_list": 1}
    assert extract(tmp_path, "{turns: {each: 'deep[*]'}}", row).only == [("user", "x")]


def test_each_takes_the_first_alternative_that_gives_anything(tmp_path: Path) -> None:
    schema = "{turns: {each: [a, b, c]}}"
    got = extract(tmp_path, schema, {"a": None, "b": [], "c": chat(Q)}, {"b": chat(("user", "b")), "c": chat(Q)})
    assert got.conversations == [[Q], [("user", "b")]]


def test_texts_are_turns_with_a_constant_role(tmp_path: Path) -> None:
    got = extract(tmp_path, "{turns: {each: turns, role: {as: user}}}", {"turns": ["a", "b"]})
    assert got.only == [("user", "a"), ("user", "b")]
    assert extract(tmp_path, "{turns: {each: turns}}", {"turns": ["a", "b"]}).rejects == {"turn_is_a_string": 1}


def test_without_each_the_row_is_the_turn(tmp_path: Path) -> None:
    schema = "{turns: [{role: {as: user}, text: q}, {role: {as: assistant}, text: a}], keep: full}"
    assert extract(tmp_path, schema, {"q": "why", "a": "so"}).only == [("user", "why"), ("assistant", "so")]


def test_a_row_that_is_a_turn_lends_it_no_name(tmp_path: Path) -> None:
    schema = "{turns: [{role: {as: user}, text: q}, {role: {as: tool}, text: out}], keep: each_user}"
    row = {"q": "why", "out": "so", "name": "of the row", "tool_call_id": "x"}
    for suffix in (".jsonl", ".parquet"):
        got = extract(tmp_path, schema, row, suffix=suffix)
        assert got.messages == [[{"role": "user", "content": "why"}, {"role": "tool", "content": "so"}]]


def test_a_whole_file_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(chat(Q, A, ("user", "q2"))))
    got = extract(tmp_path, "{turns: {each: $}}", source={"files": str(tmp_path / "t.json"), "rows": "$"})
    assert got.only == [Q, A, ("user", "q2")]


def test_role_by_filters_first_that_holds(tmp_path: Path) -> None:
    schema = """
      turns:
        each: events
        role: {"@.source == 'user'": user, "@.observation": tool, "@.source == 'agent'": assistant, else: drop}
        text: message
      keep: each_user"""
    events = [
        {"source": "user", "message": "do"},
        {"source": "agent", "observation": "run", "message": "out"},
        {"source": "agent", "message": "done"},
        {"source": "environment", "message": "noise"},
    ]
    assert extract(tmp_path, schema, {"events": events}).only == [
        ("user", "do"),
        ("tool", "out"),
        ("assistant", "done"),
    ]


def test_role_by_filters_over_texts(tmp_path: Path) -> None:
    schema = """{turns: {each: t, role: {"match(@, 'Q: .*')": user, else: assistant}}, keep: full}"""
    assert extract(tmp_path, schema, {"t": ["Q: why", "so"]}).only == [("user", "Q: why"), ("assistant", "so")]


def test_text_falls_back_over_null_and_empty_and_blank(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "text": None, "alt": "S"},
        {"role": "user", "text": " \n", "alt": "U"},
        {"role": "user", "text": " kept as it is ", "alt": "no"},
    ]
    got = extract(tmp_path, "{turns: {each: t, text: [text, alt]}}", {"t": turns})
    assert got.only == [("system", "S"), ("user", "U"), ("user", " kept as it is ")]


def test_joined_texts_take_what_is_there(tmp_path: Path) -> None:
    schema = '{turns: {role: {as: user}, text: {join: [instruction, input], by: "\\n\\n"}}}'
    got = extract(tmp_path, schema, {"instruction": "i", "input": "x"}, {"instruction": "j", "input": ""})
    assert got.conversations == [[("user", "i\n\nx")], [("user", "j")]]


def test_several_matches_of_one_path_are_joined(tmp_path: Path) -> None:
    got = extract(tmp_path, "{turns: {role: {as: user}, text: 'p[*].t'}}", {"p": [{"t": "a"}, {"t": None}, {"t": "b"}]})
    assert got.only == [("user", "ab")]


@pytest.mark.parametrize(
    ("content", "policy", "text"),
    [
        (["a", {"type": "text", "text": "b"}], "reject", "ab"),
        ([{"text": " a "}, {"value": "b"}, {"content": "c"}], "reject", " a bc"),
        ([["a", ["b"]], {"type": "text", "content": [{"text": "c"}]}], "reject", "abc"),
        ([{"type": "input_text", "text": "a"}, None], "reject", "a"),
        ({"type": "text", "text": "a"}, "reject", "a"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}], "drop", "a"),
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
            "placeholder",
            "a[image_url]",
        ),
        (["a", {"image": "x.png"}], "placeholder", "a[image]"),
        (42, "reject", "42"),
        (0.1, "reject", "0.1"),
    ],
)
def test_parts(tmp_path: Path, content: object, policy: str, text: str) -> None:
    got = extract(tmp_path, f"{{turns: {{each: t, parts: {policy}}}}}", {"t": chat(("user", content))})
    assert got.only == [("user", text)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([{"type": "image", "image": "x"}], "other_part"),
        ([{"type": "tool_use", "text": "looks like text"}], "other_part"),
        ([{"role": "user", "content": "a turn"}], "malformed_part"),
        ([1, 2], "malformed_part"),
        (True, "text_is_a_boolean"),
    ],
)
def test_parts_that_are_no_text(tmp_path: Path, content: object, reason: str) -> None:
    assert extract(tmp_path, "turns: {each: t}", {"t": chat(("user", content))}).rejects == {reason: 1}


def test_take_looks_at_turns_with_text_only(tmp_path: Path) -> None:
    row = {"t": chat(("system", None), ("user", "a"), ("assistant", "b"), ("user", " "))}
    assert extract(tmp_path, "{turns: {each: t, take: first}}", row).only == [("user", "a")]
    assert extract(tmp_path, "{turns: [{each: t, take: first}, {each: t, take: last}], keep: full}", row).only == [
        ("user", "a"),
        ("assistant", "b"),
    ]


def test_pairs_of_keys_and_of_places(tmp_path: Path) -> None:
    schema = "{turns: {each: c, pairs: {user: human, assistant: bot}}, keep: each_user}"
    got = extract(tmp_path, schema, {"c": [{"human": "h1", "bot": "b1"}, {"human": "h2", "bot": ""}]})
    assert got.only == [("user", "h1"), ("assistant", "b1"), ("user", "h2")]
    schema = """
      turns:
        - {each: history, pairs: {user: "[0]", assistant: "[1]"}}
        - {role: {as: user}, text: query}"""
    got = extract(tmp_path, schema, {"history": [["a", "b"], ["c", "d"]], "query": "q"}, {"query": "only"})
    assert got.conversations[0] == [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "q")]
    assert got.conversations[1] == [("user", "only")]


SPLIT = "split: {user: 'USER:', assistant: 'ASSISTANT:', tool: 'FUNCTION RESPONSE:', strip: ['<|endoftext|>']}"


def test_split_cuts_at_markers_that_begin_a_line(tmp_path: Path) -> None:
    text = "USER: what says USER: here?\n\n\nASSISTANT: this <|endoftext|>\n\n"
    text += "FUNCTION RESPONSE: {}\nASSISTANT: \nUSER: end"
    got = extract(tmp_path, f"{{turns: {{text: chat, {SPLIT}}}, keep: each_user}}", {"chat": text})
    assert got.only == [("user", "what says USER: here?"), ("assistant", "this"), ("tool", "{}"), ("user", "end")]
    assert got.notes["empty_turns"] == 1


def test_split_anywhere_and_what_stands_before(tmp_path: Path) -> None:
    schema = "{{turns: {{text: chat, split: {{user: 'H:', assistant: 'A:', at: any{0}}}}}, keep: full}}"
    row = {"chat": "intro H: q A: a"}
    assert extract(tmp_path, schema.format(", prefix: drop"), row).only == [Q, A]
    assert extract(tmp_path, schema.format(""), row).rejects == {"text_before_speaker": 1}
    assert extract(tmp_path, schema.format(""), {"chat": " \nH: q A: a"}).only == [Q, A]


def test_prompt_takes_every_match_as_a_user_turn(tmp_path: Path) -> None:
    row = {"t": chat(("human", "a"), ("gpt", "b"), ("human", "c"), role="r", text="x")}
    got = extract(tmp_path, "{prompt: 't[r=human].x', keep: to_last_user}", row)
    assert got.only == [("user", "a"), ("user", "c")]
    assert extract(tmp_path, "{prompt: 't[r=human].x'}", row).only == [("user", "a")], (
        "prompt keeps the first by default"
    )
    assert extract(tmp_path, "{prompt: t}", row).rejects == {"prompt_is_a_list": 1}
    assert extract(tmp_path, "{prompt: 't[0]'}", row).rejects == {"prompt_is_no_text": 1}


def test_system_stands_in_if_no_turn_is_a_system_turn(tmp_path: Path) -> None:
    rows = [
        {"sys": "S", "t": chat(Q)},
        {"sys": "S", "t": chat(("system", "own"), Q)},
        {"sys": " ", "t": chat(("user", "x"))},
    ]
    blank = [{**row, "none": none} for row, none in zip(rows, (" ", "N/A", ""), strict=True)]
    got = extract(tmp_path, "{turns: {each: t}, system: [none, sys], dedup: none, empty: N/A}", *blank)
    assert got.conversations == [[("system", "S"), Q], [("system", "own"), Q], [("user", "x")]]
    assert extract(tmp_path, "{turns: {each: t}, system: {text: L}}", rows[0]).only == [("system", "L"), Q]
    assert extract(tmp_path, "{turns: {each: t}, system: {drop: true}}", rows[1]).only == [Q]


def test_empty_words_and_turns(tmp_path: Path) -> None:
    row = {"t": chat(("user", "None"), ("user", " N/A "), ("assistant", None), ("user", "None of it"))}
    got = extract(tmp_path, "{turns: {each: t}, empty: ['None', 'N/A']}", row)
    assert got.only == [("user", "None of it")]
    assert got.notes["empty_turns"] == 3
    assert extract(tmp_path, "{turns: {each: t}}", {"t": chat(("user", ""), A)}).rejects == {"no_user_turn": 1}


def test_flags_and_weights_go_along(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "q", "w": 0},
        {"role": "assistant", "content": "a", "w": 0.5},
        {"role": "user", "content": "r"},
    ]
    got = extract(tmp_path, "{turns: {each: t}, keep: each_user}", {"t": turns}, mask={"flag": "w"})
    assert [message.get("flag") for message in got.messages[0]] == [0, 0.5, None]
    turns[0]["w"] = "yes"
    assert extract(tmp_path, "turns: {each: t}", {"t": turns}, mask={"flag": "w"}).rejects == {"bad_flag": 1}


def test_flags_of_pairs_and_of_whole_chats(tmp_path: Path) -> None:
    pairs = {"t": [{"h": "q", "a": "a", "w": 0.5}, {"h": "r", "a": "b"}]}
    schema = "{turns: {each: t, pairs: {user: h, assistant: a}}, keep: full}"
    got = extract(tmp_path, schema, pairs, mask={"flag": "w"})
    assert [message.get("flag") for message in got.messages[0]] == [0.5, 0.5, None, None]
    schema = "{turns: {text: c, split: {user: 'U:', assistant: 'A:'}}, keep: full}"
    got = extract(tmp_path, schema, {"c": "U: q\nA: a", "w": False}, mask={"flag": "w"})
    assert [message["flag"] for message in got.messages[0]] == [False, False]
    assert extract(tmp_path, schema, {"c": "U: q\nA: a", "w": "x"}, mask={"flag": "w"}).rejects == {"bad_flag": 1}


def test_turns_with_text_need_a_label(tmp_path: Path) -> None:
    turns = [{"content": "x"}, {"role": "user", "content": "y"}]
    assert extract(tmp_path, "turns: {each: t}", {"t": turns}).rejects == {"turn_without_role": 1}
    assert extract(tmp_path, "turns: {each: t}", {"t": [{"content": None}, turns[1]]}).only == [("user", "y")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1, 2], "row_is_a_list"),
        ("text", "row_is_no_object"),
        (7, "row_is_no_object"),
        ({"t": None}, "no_user_turn"),
        ({"t": [3]}, "turn_is_no_object"),
        ({"t": chat(("user", "half \ud800"))}, "cannot_encode"),
    ],
)
def test_rows_that_hold_no_conversation(tmp_path: Path, row: object, reason: str) -> None:
    got = extract(tmp_path, "{turns: {each: t}}", row, {"t": chat(Q)})
    assert got.rejects.total() == 1
    # A lone surrogate may be refused by the reader already.
    assert got.rejects in ({reason: 1}, {"not_json": 1} if reason == "cannot_encode" else {})
