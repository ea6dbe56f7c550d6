"""Tool specs, calls and results: every form, exact values, pairing, specs given twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from extracting import chat, extract

T = chat(("user", "q"))
TURNS = "{turns: {each: t}, keep: each_user"
PARAMETERS = {"type": "object", "properties": {"x": {"type": "number", "default": 0.7, "enum": [1, None]}}}
FUNCTION = {"name": "f", "description": "d", "parameters": PARAMETERS}
SPEC = {"type": "function", "function": FUNCTION}


def call(name: str = "f", arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {**more, "type": "function", "function": {"name": name, "arguments": arguments or {}}}


@pytest.mark.parametrize(
    "written",
    [
        [SPEC],
        SPEC,
        [FUNCTION],
        json.dumps([SPEC]),
        json.dumps([FUNCTION]),
        [json.dumps(SPEC)],
        [{"function": FUNCTION}],
        str([FUNCTION]),
    ],
    ids=["openai", "one", "bare", "text", "text of bare", "list of texts", "without type", "python literal"],
)
def test_specs_come_out_in_one_form_with_exact_values(tmp_path: Path, written: object) -> None:
    got = extract(tmp_path, TURNS + ", tools: tools}", {"t": chat(("user", "q")), "tools": written})
    assert got.tools == [[SPEC]]
    assert got.notes["python_literals"] == (1 if str(written).startswith("[{'name") and isinstance(written, str) else 0)


def test_rows_without_specs_have_none(tmp_path: Path) -> None:
    rows = [{"t": chat(("user", str(i))), "tools": tools} for i, tools in enumerate([None, [], "", "[]", [SPEC]])]
    assert extract(tmp_path, TURNS + ", tools: tools}", *rows).tools == [None, None, None, None, [SPEC]]


def test_foreign_specs_are_named(tmp_path: Path) -> None:
    foreign = [{"api": {"label": "f"}, "help": "d", "schema": json.dumps(PARAMETERS)}]
    schema = TURNS + ", tools: {each: apis, name: api.label, description: help, parameters: schema}}"
    row = {"t": chat(("user", "q")), "apis": foreign}
    assert extract(tmp_path, schema, row).tools == [[SPEC]]
    assert extract(tmp_path, schema, {**row, "apis": json.dumps(foreign)}).tools == [[SPEC]]
    assert extract(tmp_path, schema, {**row, "apis": [{"help": "no name"}]}).rejects == {"bad_tools": 1}


@pytest.mark.parametrize("tools", ["no json", ["f"], [{"title": "f"}], 5, "[" * 100_000])
def test_what_is_no_spec_is_a_reject(tmp_path: Path, tools: object) -> None:
    got = extract(tmp_path, TURNS + ", tools: tools}", {"t": chat(("user", "q")), "tools": tools})
    assert got.rejects == {"bad_tools": 1}


SYSTEM = "Signatures stand within <tools></tools> tags. <tools>\n{}\n</tools> Call them."


@pytest.mark.parametrize(
    "inner", [json.dumps([FUNCTION, SPEC]), json.dumps(FUNCTION) + "\n" + json.dumps(SPEC), str([FUNCTION, SPEC])]
)
def test_specs_from_the_system_text(tmp_path: Path, inner: str) -> None:
    text = SYSTEM.replace("{}", inner)
    row = {"t": chat(("system", text), ("user", "q"))}
    kept = extract(tmp_path, TURNS + ', tools: {from: system, between: ["<tools>", "</tools>"]}}', row)
    assert kept.tools == [[SPEC, SPEC]]
    assert kept.only[0] == ("system", text)
    assert kept.notes["tools_twice"] == 1
    stripped = extract(
        tmp_path, TURNS + ', tools: {from: system, between: ["<tools>", "</tools>"], twice: strip}}', row
    )
    assert stripped.tools == [[SPEC, SPEC]]
    assert stripped.only[0] == ("system", "Signatures stand within <tools></tools> tags.  Call them.")


def test_specs_to_the_end_of_the_system_text(tmp_path: Path) -> None:
    text = (
        "SYSTEM: You have functions. Use them if required -\n"
        + json.dumps(FUNCTION, indent=1)
        + "\n\n"
        + json.dumps(FUNCTION)
    )
    schema = TURNS + ', system: s, tools: {from: system, between: ["-\\n", ""], twice: strip}}'
    got = extract(
        tmp_path, schema, {"s": text, "t": chat(("user", "q"))}, {"s": "None here.", "t": chat(("user", "r"))}
    )
    assert got.tools == [[SPEC, SPEC], None]
    assert got.conversations[0][0] == ("system", "SYSTEM: You have functions. Use them if required ")


def test_a_column_and_the_system_text_hold_the_same_specs(tmp_path: Path) -> None:
    row = {"t": chat(("system", SYSTEM.replace("{}", json.dumps([FUNCTION]))), ("user", "q")), "tools": [SPEC]}
    warned = extract(tmp_path, TURNS + ", tools: tools}", row)
    assert warned.notes["tools_twice"] == 1
    stripped = extract(tmp_path, TURNS + ", tools: {path: tools, twice: strip}}", row)
    assert stripped.notes["tools_twice"] == 0
    assert '"f"' not in stripped.only[0][1]
    assert stripped.tools == [[SPEC]]


# -- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 0.7, "n": null}'}}],
        {"id": "c", "function": {"name": "f", "arguments": {"x": 0.7, "n": None}}},
        [{"id": "c", "name": "f", "arguments": '{"x": 0.7, "n": null}'}],
        [json.dumps({"id": "c", "name": "f", "arguments": {"x": 0.7, "n": None}})],
        json.dumps([{"id": "c", "name": "f", "arguments": {"x": 0.7, "n": None}}]),
    ],
)
def test_calls_come_out_in_one_form(tmp_path: Path, written: object) -> None:
    turns = [*chat(("user", "q")), {"role": "assistant", "content": None, "tool_calls": written}]
    got = extract(tmp_path, TURNS + "}", {"t": turns})
    assert got.messages[0][1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [call(arguments={"x": 0.7, "n": None}, id="c")],
    }


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        ("{not json", "{not json"),
        ('{"x": NaN}', '{"x": NaN}'),
        ('{"x": 1e999}', '{"x": 1e999}'),
        ('{"x": 1e999, "n": 12345678901234567890123}', '{"x": 1e999, "n": 12345678901234567890123}'),
        ('{"x": -0.0, "y": 1.0, "z": 0.7, "n": null}', {"x": -0.0, "y": 1.0, "z": 0.7, "n": None}),
        ("[1]", "[1]"),
        ("", {}),
        (None, {}),
        (12345678901234567890123, 12345678901234567890123),
    ],
)
def test_arguments_that_are_no_object_stay(tmp_path: Path, arguments: object, out: object) -> None:
    turns = [*chat(("user", "q")), {"role": "assistant", "tool_calls": [{"name": "f", "arguments": arguments}]}]
    got = extract(tmp_path, TURNS + "}", {"t": turns})
    assert str(got.messages[0][1]["tool_calls"][0]["function"]["arguments"]) == str(out)


def test_whole_numbers_stay_exact_at_any_length(tmp_path: Path) -> None:
    number = 2**70 + 1
    turns = [
        *chat(("user", "q")),
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": f'{{"x": {number}}}'}]},
    ]
    got = extract(tmp_path, TURNS + "}", {"t": turns})
    assert got.messages[0][1]["tool_calls"][0]["function"]["arguments"] == {"x": number}


def test_foreign_calls_and_reasoning_are_named(tmp_path: Path) -> None:
    turns = [
        *chat(("user", "q")),
        {"role": "assistant", "content": "", "acts": [{"API": "f", "params": {"x": 1}}], "think": "hm"},
    ]
    schema = "{turns: {each: t, tool_calls: {each: acts, name: API, arguments: params}, reasoning: think}, keep: full}"
    message = extract(tmp_path, schema, {"t": turns}).messages[0][1]
    assert message["reasoning"] == "hm"
    assert message["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": "call_1"}
    ]


def test_foreign_calls_in_a_text(tmp_path: Path) -> None:
    said = {"role": "assistant", "acts": json.dumps([{"API": "f", "params": {"x": 0.7}}])}
    schema = "{turns: {each: t, tool_calls: {each: acts, name: API, arguments: params}}, keep: full}"
    message = extract(tmp_path, schema, {"t": [*T, said]}).messages[0][1]
    assert message["tool_calls"] == [call(arguments={"x": 0.7}, id="call_1")]
    assert extract(tmp_path, schema, {"t": [*T, {**said, "acts": "no json"}]}).rejects == {"bad_tool_call": 1}


def test_reasoning_content_is_taken_if_there(tmp_path: Path) -> None:
    turns = [*chat(("user", "q")), {"role": "assistant", "content": "a", "reasoning_content": "hm"}]
    assert extract(tmp_path, TURNS + "}", {"t": turns}).messages[0][1] == {
        "role": "assistant",
        "content": "a",
        "reasoning": "hm",
    }


def test_function_call_turns_are_calls_of_the_assistant(tmp_path: Path) -> None:
    said = json.dumps({"name": "f", "arguments": {"x": 1}})
    turns = chat(
        ("human", "q"),
        ("function_call", said),
        ("observation", "out"),
        ("function_call", "no call"),
        role="from",
        text="value",
    )
    got = extract(tmp_path, "{turns: {each: t, role: from, text: value}, keep: each_user}", {"t": turns})
    assert got.messages[0][1]["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": "call_1"}
    ]
    assert got.messages[0][2] == {"role": "tool", "content": "out", "tool_call_id": "call_1"}
    assert got.messages[0][3] == {"role": "assistant", "content": "no call"}
    assert got.notes["function_call_as_text"] == 1


@pytest.mark.parametrize("written", ["no json", [{"arguments": {}}], [5], {"name": 3}])
def test_what_is_no_call_is_a_reject(tmp_path: Path, written: object) -> None:
    turns = [*chat(("user", "q")), {"role": "assistant", "tool_calls": written}]
    assert extract(tmp_path, TURNS + "}", {"t": turns}).rejects == {"bad_tool_call": 1}


def test_calls_and_results_without_ids_are_paired_in_order(tmp_path: Path) -> None:
    turns = [
        *chat(("user", "q")),
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]},
        *chat(("tool", "of f"), ("tool", "of g"), ("tool", "of nothing")),
    ]
    got = extract(tmp_path, TURNS + "}", {"t": turns})
    assert [made["id"] for made in got.messages[0][1]["tool_calls"]] == ["call_1", "call_2"]
    assert [message.get("tool_call_id") for message in got.messages[0][2:]] == ["call_1", "call_2", None]
    assert got.notes["orphan_tool_results"] == 1
    assert extract(tmp_path, TURNS + ", orphan_tool: reject}", {"t": turns}).rejects == {"orphan_tool": 1}


def test_results_keep_their_ids_and_names(tmp_path: Path) -> None:
    turns = [
        *chat(("user", "q")),
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "name": "f", "arguments": {}}, {"id": "b", "name": "g", "arguments": {}}],
        },
        {"role": "tool", "tool_call_id": "b", "name": "g", "content": "of g"},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "tool", "content": ""},
    ]
    got = extract(tmp_path, TURNS + "}", {"t": turns})
    assert got.messages[0][2:] == [
        {"role": "tool", "content": "of g", "tool_call_id": "b", "name": "g"},
        {"role": "tool", "content": "", "tool_call_id": "a"},
    ], "an empty text that answers a call is a result, any other an empty turn"
    assert got.notes == {"empty_turns": 1}


@pytest.mark.parametrize(
    ("ids", "of_g", "made"),
    [((1, 2), 2, ["1", "2"]), ((None, "b"), "b", ["call_1", "b"]), ((None, "call_1"), "call_1", ["call_2", "call_1"])],
    ids=["numbers", "one without", "one that looks made"],
)
def test_a_result_goes_to_the_call_with_its_id(tmp_path: Path, ids: Any, of_g: Any, made: list[str]) -> None:
    calls = [{"id": own, "name": name, "arguments": {}} for own, name in zip(ids, "fg", strict=True)]
    results = [{"role": "tool", "tool_call_id": of_g, "content": "of g"}, *chat(("tool", "of f"))]
    got = extract(tmp_path, TURNS + "}", {"t": [*T, {"role": "assistant", "tool_calls": calls}, *results]})
    assert [call["id"] for call in got.messages[0][1]["tool_calls"]] == made
    assert [(message["content"], message["tool_call_id"]) for message in got.messages[0][2:]] == [
        ("of g", made[1]),
        ("of f", made[0]),
    ]


# -- Arrow ----------------------------------------------------------------------------------------


def test_nulls_that_arrow_filled_in_are_pruned(tmp_path: Path) -> None:
    other = {"name": "g", "parameters": {"type": "object", "properties": {"y": {"type": "string"}}}}
    row = {
        "t": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"y": "2"}}],
            },
        ],
        "tools": [{"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}, other],
    }
    got = extract(tmp_path, TURNS + ", tools: tools}", row, suffix=".parquet")
    assert [spec["function"] for spec in got.tools[0]] == row["tools"]
    assert [made["function"]["arguments"] for made in got.messages[0][1]["tool_calls"]] == [{"x": 1}, {"y": "2"}]


def test_nulls_are_pruned_in_joined_rows_too(tmp_path: Path) -> None:
    def partner(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        calls = [{"name": name, "arguments": arguments}]
        return {"id": name, "kind": "b", "said": [{"role": "assistant", "content": None, "tool_calls": calls}]}

    asked = [{"id": name, "kind": "a", "ask": [{"role": "user", "content": name}], "said": None} for name in "fg"]
    schema = """
        turns: [{each: ask}, {each: other.said}]
        keep: full
        join: {rows: "@.kind == 'b'", on: id, as: other}"""
    made = [*asked, partner("f", {"x": 1}), partner("g", {"y": 0.7})]
    got = extract(tmp_path, schema, *made, suffix=".parquet")
    assert [row[1]["tool_calls"][0]["function"]["arguments"] for row in got.messages] == [{"x": 1}, {"y": 0.7}]


def test_texts_that_json_cannot_say_are_a_reject(tmp_path: Path) -> None:
    half = {"t": chat(("user", "q")), "tools": "[{'name': 'f', 'description': '\\ud800'}]"}
    assert extract(tmp_path, TURNS + ", tools: tools}", half).rejects == {"cannot_encode": 1}


@pytest.mark.parametrize("number", ["1e999", "-1e999", '1e999, "n": 12345678901234567890123'])
def test_numbers_that_no_double_holds_are_a_reject(tmp_path: Path, number: str) -> None:
    spec = f'[{{"name": "f", "parameters": {{"x": {number}}}}}]'
    assert extract(tmp_path, TURNS + ", tools: tools}", {"t": T, "tools": spec}).rejects == {"bad_tools": 1}
    system = {"t": [*chat(("system", f"<tools>{spec}</tools>")), *T]}
    assert extract(tmp_path, TURNS + ", tools: {from: system}}", system).tools == [None]
    decoded = extract(tmp_path, TURNS + ", tools: b.tools, decode: b}", {"t": T, "b": f'{{"tools": {spec}}}'})
    assert decoded.rejects == {"cannot_decode": 1}


def test_nulls_from_json_are_kept(tmp_path: Path) -> None:
    spec = {"name": "f", "parameters": {"default": None}}
    assert (
        extract(tmp_path, TURNS + ", tools: tools}", {"t": chat(("user", "q")), "tools": [spec]}).tools[0][0][
            "function"
        ]
        == spec
    )
    text = json.dumps([spec])
    got = extract(tmp_path, TURNS + ", tools: tools}", {"t": chat(("user", "q")), "tools": text}, suffix=".parquet")
    assert got.tools[0][0]["function"] == spec, "a text in a Parquet file is JSON, not Arrow's"
    got = extract(tmp_path, TURNS + ", tools: tools, decode: tools}", {"t": T, "tools": text}, suffix=".parquet")
    assert got.tools[0][0]["function"] == spec


def test_turns_that_are_calls_themselves(tmp_path: Path) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "function_call", "call_id": "c7", "name": "f", "arguments": '{"x": 0.7}'},
        {"type": "function_call_output", "call_id": "c7", "output": "r"},
        {"role": "assistant", "content": "a"},
    ]
    schema = """
      turns:
        each: input
        role: {"@.type == 'function_call'": assistant, "@.output": tool, "@.role == 'user'": user, else: assistant}
        text: [content, output]
        tool_calls: {each: $, id: call_id, name: name, arguments: arguments}
      keep: each_user
    """
    messages = extract(tmp_path, schema, {"input": items}).messages[0]
    call = {"id": "c7", "type": "function", "function": {"name": "f", "arguments": {"x": 0.7}}}
    assert messages == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "c7"},
        {"role": "assistant", "content": "a"},
    ]
