"""docs/gallery.md: every declaration on it is run, over the rows it shows or rows of the form it speaks of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from declared import ROOT, Extracted, extract
from extracting import chat, write_rows

PAGE = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
BLOCKS = [
    (shown and json.loads(shown), yaml.safe_load(written))
    for shown, written in re.findall(r"(?:```json\n(.*?)```\n)?```yaml\n(.*?)```", PAGE, re.DOTALL)
]
Q, A = ("user", "q"), ("assistant", "a")
CALL = {"name": "f", "arguments": {"x": 0.7}}
SPEC = {"name": "f", "parameters": {"type": "object"}}
EVENTS = [
    {"source": "user", "message": "Do it."},
    {
        "source": "agent",
        "action": "run",
        "tool_call_metadata": {
            "model_response": {"choices": [{"message": {"content": "I look.", "tool_calls": [{"function": CALL}]}}]}
        },
    },
    {"source": "agent", "observation": "run", "content": "a.txt"},
]
REQUEST = {"type": "request", "request_id": "r", "task_name": "t", "body": {"messages": chat(Q), "tools": [SPEC]}}
VENDORS = [
    {"messages": [*chat(Q), {"role": "assistant", "tool_calls": [{"id": "c", "function": CALL}]}]},
    {
        "system": "Be brief.",
        "messages": [
            *chat(Q),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"x": 0.7}}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "out"}]}]},
        ],
    },
    {"contents": [{"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}]}]},
]
# What the page speaks of but does not show; each file's rows as they stand in it.
ROWS: dict[str, Any] = {
    "encoded.parquet": [{"messages": json.dumps(chat(Q, A))}],
    "input_output.jsonl": [{"input": chat(Q), "output": "a", "system_prompt": "Be brief."}],
    "rephrased.json": [{"query": f"q{i}", "original_question": "o"} for i in range(2)],
    "functions.json": [
        {"messages": [*chat(Q), {"role": "assistant", "function_call": CALL}], "available_tools": [SPEC]},
    ],
    "reasoning_parts.jsonl": [
        {
            "messages": [
                *chat(Q),
                {
                    "role": "assistant",
                    "content": [{"type": "reasoning", "value": "hm"}, {"type": "tool_call", "value": json.dumps(CALL)}],
                },
            ],
            "tools": json.dumps([SPEC]),
        }
    ],
    "hermes.json": [
        {
            "conversations": chat(
                ("system", f"Call. <tools>{json.dumps([SPEC])}</tools>"), Q, role="from", text="value"
            ),
            "tools": json.dumps([SPEC]),
        }
    ],
    "bfcl.json": [{"id": "p_0", "question": [chat(Q)], "function": [SPEC]}],
    "swe_agent.parquet": [
        {
            "instance_id": "i",
            "exit_status": "submitted",
            "trajectory": [
                {"role": "system", "text": None, "system_prompt": "S"},
                {"role": "user", "text": "q", "system_prompt": None},
                {"role": "ai", "text": "a", "system_prompt": None},
            ],
        }
    ],
    "events.json": EVENTS,
    "proxy.jsonl": [REQUEST, {"type": "response", "request_id": "r", "status_code": 200}],
    "cassettes.jsonl": [{"request": {"body": body}, "response": {"status": {"code": 200}}} for body in VENDORS],
}
# Of each file: the roles of its first record (as they are kept), the last user text, and the names of its tools.
GIVES: dict[str, tuple[str, str, list[str]]] = {
    "chats.jsonl": ("user", "Name two rivers.", []),
    "sharegpt.json": ("user", "Hi", []),
    "lima.jsonl": ("user", "Why is the sky blue?", []),
    "pairs.json": ("system user", "How to study English?", []),
    "parts.jsonl": ("user", "How many bars?", []),
    "encoded.parquet": ("user", "q", []),
    "input_output.jsonl": ("system user", "q", []),
    "alpaca.json": ("user", "Translate into French.\n\ngood evening", []),
    "history.jsonl": ("system user assistant user", "And in winter?", []),
    "rephrased.json": ("user", "q0", []),
    "questions.jsonl": ("user user", "Now start every sentence with A.", []),
    "toolcalls.json": ("user", "Weather in Bonn?", ["weather"]),
    "functions.json": ("user", "q", ["f"]),
    "reasoning_parts.jsonl": ("user", "q", ["f"]),
    "hermes.json": ("system user", "q", ["f"]),
    "toolbench.json": ("user", "Track my parcel.", ["Checkhealth"]),
    "bfcl.json": ("user", "q", ["f"]),
    "swe_agent.parquet": ("system user", "q", []),
    "events.json": ("user", "Do it.", []),
    "proxy.jsonl": ("user", "q", ["f"]),
    "cassettes.jsonl": ("user", "q", []),
    "glaive.json": ("system user", "Weather?", ["weather"]),
}


def name_of(declaration: dict[str, Any]) -> str:
    return Path(declaration["source"]["files"]).name


def run(shown: Any, declaration: dict[str, Any], folder: Path) -> Extracted:
    """The declaration over what the page shows, or over rows of that form, in a file of the name it says."""
    name = name_of(declaration)
    found = ROWS.get(name) or [shown]
    if name.endswith(".json"):
        (folder / name).write_text(json.dumps(found), encoding="utf-8")
    else:
        write_rows(folder / name, found)
    result = extract({**declaration, "source": {**declaration["source"], "files": str(folder / name)}}, folder)
    assert result.unseen == []
    return result


def test_every_declaration_is_run() -> None:
    assert sorted(name_of(declaration) for _, declaration in BLOCKS) == sorted(GIVES)
    assert all(shown or name_of(declaration) in ROWS for shown, declaration in BLOCKS)


@pytest.mark.parametrize(("shown", "declaration"), BLOCKS, ids=[name_of(declaration) for _, declaration in BLOCKS])
def test_a_declaration_gives_what_the_page_says(shown: Any, declaration: dict[str, Any], tmp_path: Path) -> None:
    result = run(shown, declaration, tmp_path)
    assert result.rejects.total() == 0
    wanted_roles, wanted_text, wanted_tools = GIVES[name_of(declaration)]
    records = [record for record in result.records if " ".join(m["role"] for m in record["messages"]) == wanted_roles]
    assert records, [record["messages"] for record in result.records]
    texts = [[m["content"] for m in record["messages"] if m["role"] == "user"][-1] for record in records]
    assert wanted_text in texts
    assert [spec["function"]["name"] for spec in records[0]["tools"] or ()] == wanted_tools


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("toolcalls.json", "user assistant tool assistant"),
        ("functions.json", "user assistant"),
        ("reasoning_parts.jsonl", "user assistant"),
        ("events.json", "user assistant tool"),
        ("glaive.json", "system user assistant"),
        ("parts.jsonl", "user assistant"),
    ],
)
def test_the_recorded_answers_are_read_too(name: str, roles: str, tmp_path: Path) -> None:
    shown, declaration = next(block for block in BLOCKS if name_of(block[1]) == name)
    schema = {**declaration["schema"], "keep": "each_user"}
    (record,) = run(shown, {**declaration, "schema": schema}, tmp_path).records
    assert " ".join(message["role"] for message in record["messages"]) == roles
    calls = [call["function"] for message in record["messages"] for call in message.get("tool_calls", ())]
    assert len(calls) == (name not in ("glaive.json", "parts.jsonl"))
    if name == "parts.jsonl":
        assert [message["flag"] for message in record["messages"]] == [0.0, 1.0]


def test_requests_to_several_vendors(tmp_path: Path) -> None:
    shown, declaration = next(block for block in BLOCKS if name_of(block[1]) == "cassettes.jsonl")
    schema = {**declaration["schema"], "keep": "each_user", "dedup": "none"}
    records = run(shown, {**declaration, "schema": schema}, tmp_path).records
    roles = sorted(" ".join(message["role"] for message in record["messages"]) for record in records)
    assert roles == ["system user assistant tool", "user assistant", "user assistant"]
    calls = [c["function"] for record in records for m in record["messages"] for c in m.get("tool_calls", ())]
    assert calls == [CALL, CALL]
