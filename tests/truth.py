"""What the public sample files hold, read by plain code that shares nothing with draftmill.

rows = load(path)                     # the JSON values of a file
chats = [TRUTH[file](row) for row in rows]
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROLE = {
    "human": "user", "gpt": "assistant", "ai": "assistant", "model": "assistant", "function": "tool",
    "observation": "tool", "function_call": "assistant",
}  # fmt: skip


@dataclass
class Turn:
    """A turn as a person reads it: calls are (name, arguments)."""

    role: str
    text: str
    calls: list[tuple[str, Any]] = field(default_factory=list)
    reasoning: str = ""

    @property
    def empty(self) -> bool:
        return not self.text.strip() and not self.calls


@dataclass
class Chat:
    """The turns that say something, and the functions among the tools, as they stand in the data."""

    turns: list[Turn]
    tools: list[Any] = field(default_factory=list)

    def cut(self, keep: str) -> Chat | None:
        """The part that `keep` leaves; None if the row is of no use."""
        roles = [turn.role for turn in self.turns]
        if "user" not in roles:
            return None
        if keep == "full":
            return None if "assistant" not in roles else self._to(lambda role: role == "assistant")
        if keep == "first_user":
            first = roles.index("user")
            return Chat([t for t in self.turns[:first] if t.role == "system"] + [self.turns[first]], self.tools)
        if keep == "to_last_user":
            return self._to(lambda role: role == "user")
        if keep == "to_last_input":
            return self._to(lambda role: role != "assistant")
        return self

    def _to(self, wanted: Callable[[str], bool]) -> Chat:
        last = max(place for place, turn in enumerate(self.turns) if wanted(turn.role))
        return Chat(self.turns[: last + 1], self.tools)


def load(path: Path) -> list[Any]:
    """The rows of a file: elements of an array, lines, or the one object."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = data.decode("utf-8")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return value if isinstance(value, list) else [value]


def chat(turns: list[Turn], system: str | None = None, tools: list[Any] | None = None) -> Chat:
    told = [turn for turn in turns if not turn.empty]
    if system and not any(turn.role == "system" for turn in told):
        told.insert(0, Turn("system", system))
    return Chat(told, tools or [])


def parts(content: Any) -> str:
    """A content's text: itself, or its text parts without anything between them."""
    if isinstance(content, list):
        return "".join(part.get("text") or part.get("value") or "" for part in content if part["type"] == "text")
    return content or ""


def calls(found: Any) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], arguments(call["function"]["arguments"])) for call in found or []]


def arguments(value: Any) -> Any:
    """Arguments that are JSON text, parsed; text that is no JSON object stays."""
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            return value
        return parsed if isinstance(parsed, dict) else value
    return value


def functions(specs: Any) -> list[Any]:
    listed = json.loads(specs) if isinstance(specs, str) else specs or []
    return [spec["function"] if isinstance(spec.get("function"), dict) else spec for spec in listed]


# -- one function for each form -------------------------------------------------------------------


def openai(key: str, tools: str | None = None) -> Callable[[Any], Chat]:
    def read(row: Any) -> Chat:
        return chat(
            [
                Turn(
                    ROLE.get(turn["role"], turn["role"]),
                    parts(turn.get("content")),
                    calls(turn.get("tool_calls")),
                    turn.get("reasoning_content") or "",
                )
                for turn in row[key]
            ],
            tools=functions(row.get(tools)) if tools else [],
        )

    return read


def sharegpt(key: str = "conversations", tools: str | None = None) -> Callable[[Any], Chat]:
    def turn(item: Any) -> Turn:
        role, text = ROLE.get(item["from"], item["from"]), item["value"]
        if item["from"] == "function_call":
            called = json.loads(text)
            called = called if isinstance(called, list) else [called]
            return Turn(role, "", [(call["name"], call["arguments"]) for call in called])
        return Turn(role, text)

    return lambda row: chat([turn(item) for item in row[key]], tools=functions(row.get(tools)) if tools else [])


def asked(question: str, answer: str, more: str = "", system: str = "") -> Callable[[Any], Chat]:
    def read(row: Any) -> Chat:
        text = "\n\n".join(part for part in (row[question], row.get(more) or "") if part.strip())
        history = [
            Turn(role, text)
            for pair in row.get("history") or []
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        return chat([*history, Turn("user", text), Turn("assistant", row[answer])], row.get(system))

    return read


def prompts(key: str) -> Callable[[Any], Chat]:
    return lambda row: chat([Turn("user", text) for text in (row[key] if isinstance(row[key], list) else [row[key]])])


def bfcl(row: Any) -> Chat:
    turns = [turn for block in row["question"] for turn in block]
    return chat([Turn(turn["role"], turn["content"]) for turn in turns], tools=functions(row["function"]))


def nebius(row: Any) -> Chat:
    return chat(
        [Turn(ROLE.get(t["role"], t["role"]), t["text"] or t["system_prompt"] or "") for t in row["trajectory"]]
    )


def toucan(row: Any) -> Chat:
    turns = []
    for turn in row["messages"]:
        called = turn.get("function_call")
        found = [(called["name"], arguments(called["arguments"]))] if called else []
        turns.append(Turn(ROLE.get(turn["role"], turn["role"]), turn["content"] or "", found))
    return chat(turns, tools=functions(row["available_tools"]))


def reasons(row: Any) -> Chat:
    turns = []
    for turn in row["messages"]:
        by_type: dict[str, list[str]] = {}
        for part in turn["content"]:
            by_type.setdefault(part["type"], []).append(part["value"])
        loaded = [json.loads(text) for text in by_type.get("tool_call", [])]
        found = [
            (call["name"], call["arguments"])
            for item in loaded
            for call in (item if isinstance(item, list) else [item])
        ]
        turns.append(Turn(turn["role"], "".join(by_type.get("text", [])), found, "".join(by_type.get("reasoning", []))))
    return chat(turns, tools=functions(row["tools"]))


def trace(row: Any) -> Chat:
    """A file that is one list of turns, already gathered."""
    return chat([Turn(turn["role"], turn["content"]) for turn in row])


def events(row: Any) -> Chat:
    """OpenHands: the agent's actions carry the model's own message, observations are what came back."""
    turns = []
    for event in row:
        model = event.get("tool_call_metadata", {}).get("model_response", {}).get("choices", [{}])[0].get("message", {})
        if event["source"] == "user":
            turns.append(Turn("user", event["message"]))
        elif "observation" in event:
            turns.append(Turn("tool", event["content"]))
        else:
            turns.append(Turn("assistant", model.get("content") or event["message"], calls(model.get("tool_calls"))))
    return chat(turns)


def pairs(key: str, user: str, assistant: str, system: str) -> Callable[[Any], Chat]:
    def read(row: Any) -> Chat:
        turns = []
        for pair in row[key]:
            turns += [
                Turn("system", pair.get(system) or ""),
                Turn("user", pair[user]),
                Turn("assistant", pair[assistant]),
            ]
        return chat(turns, row.get(system))

    return read


def spoken(row: Any) -> Chat:
    """tau-bench: lines that begin with a speaker."""
    pieces = re.split(r"^(user|assistant|tool):", row["messages_display"], flags=re.MULTILINE)[1:]
    turns = [Turn(role, text.strip()) for role, text in zip(pieces[::2], pieces[1::2], strict=True)]
    return chat([turn for turn in turns if turn.text != "None"])


def toolbench(row: Any) -> Chat:
    return chat(
        [Turn("user", row["query"])],
        tools=[_filled({"name": api["api_name"], "description": api["api_description"]}) for api in row["api_list"]],
    )


def _filled(function: Any) -> Any:
    return {key: value for key, value in function.items() if value not in (None, "")}


def http(row: Any) -> Chat:
    """pydantic-ai: request bodies of four vendors."""
    body = row["request"]["body"]
    turns = [_http_turn(turn) for turn in body.get("messages") or body.get("contents") or body["input"]]
    specs = body.get("tools") or []
    specs = specs["function_declarations"] if isinstance(specs, dict) else specs
    named = [
        {
            "name": spec["name"],
            "description": spec.get("description"),
            "parameters": spec.get("parameters") or spec.get("input_schema"),
        }
        for spec in functions(specs)
        if "name" in spec
    ]
    return chat([turn for turn in turns if turn], body.get("system"), [_filled(spec) for spec in named])


def _http_turn(turn: Any) -> Turn | None:
    content = turn.get("content") or turn.get("parts") or []
    listed = content if isinstance(content, list) else []
    if turn.get("type") == "function_call":
        return Turn("assistant", "", [(turn["name"], arguments(turn["arguments"]))])
    if turn.get("type") == "function_call_output":
        return Turn("tool", turn["output"])
    if "role" not in turn:
        return None
    results = [part["content"] for part in listed if part.get("type") == "tool_result"]
    results += [part["functionResponse"]["response"]["return_value"] for part in listed if "functionResponse" in part]
    if results:
        return Turn("tool", "".join(results))
    used = [(part["name"], part["input"]) for part in listed if part.get("type") == "tool_use"]
    used += [(part["functionCall"]["name"], part["functionCall"]["args"]) for part in listed if "functionCall" in part]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in listed)
    thought = "".join(part.get("thinking", "") for part in listed)
    return Turn(ROLE.get(turn["role"], turn["role"]), text, used or calls(turn.get("tool_calls")), thought)


TRUTH: dict[str, Callable[[Any], Chat]] = {
    "adp/agenttuning_os.sample_raw.json": openai("conversations"),
    "adp/code_feedback.sample_raw.json": openai("messages"),
    "adp/codeactinstruct.sample_raw.json": openai("conversations"),
    "adp/mini-coder.sample_raw.json": openai("messages"),
    "adp/nebius_SWE-agent-trajectories.sample_raw.json": nebius,
    "adp/orca_agentinstruct.sample_raw.json": openai("conversations"),
    "adp/swe-gym_openhands_sampled_trajectories.sample_raw.json": openai("messages", "tools"),
    "adp/synatra.sample_raw.json": asked("prompt", "response"),
    "adp/toucan_1_5m.sample_raw.json": toucan,
    "angelslim/multimodal_fake_openai_format.json": openai("messages"),
    "axolotl/alpaca_alpaca.json": asked("instruction", "output", "input"),
    "axolotl/conversation.json": sharegpt(),
    "axolotl/conversation.missingturns.json": sharegpt(),
    "bfcl/BFCL_v4_live_parallel.json": bfcl,
    "bfcl/BFCL_v4_parallel.json": bfcl,
    "data-juicer/demo-dataset-chatml.jsonl": openai("messages"),
    "eagle/humaneval_question.jsonl": prompts("turns"),
    "eagle/qa_question.jsonl": prompts("turns"),
    "fastchat/dummy_conversation.json": sharegpt(),
    "fastchat/mt_bench_question.jsonl": prompts("turns"),
    "gsm8k/test.jsonl": asked("question", "answer"),
    "human-eval/HumanEval.jsonl.gz": prompts("prompt"),
    "llama-factory/alpaca_en_demo.json": asked("instruction", "output", "input"),
    "llama-factory/glaive_toolcall_en_demo.json": sharegpt(tools="tools"),
    "llama-factory/reason_tool_use_demo_50.jsonl": reasons,
    "llama-factory/v1_sft_demo.jsonl": openai("messages"),
    "mini-swe-agent/local.traj.json": trace,
    "ms-swift/alpaca.jsonl": asked("instruction", "output", "input", "system"),
    "ms-swift/chatml.jsonl": openai("messages"),
    "ms-swift/conversations.jsonl": sharegpt(),
    "ms-swift/sharegpt.jsonl": pairs("conversation", "human", "assistant", "system"),
    "ms-swift/swift_multi.jsonl": asked("query", "response", system="system"),
    "ms-swift/swift_single.csv": asked("query", "response", system="system"),
    "nvidia-modelopt/synthetic_conversations_1k.jsonl": openai("messages"),
    "openhands/trajs_basic.json": events,
    "pydantic-ai/cassettes_as_rows.jsonl": http,
    "specforge/tool_use_conversation.jsonl": openai("conversations", "tools"),
    "swe-agent/function_calling_simple.traj": openai("history"),
    "swe-agent/marshmallow-1867_xml.traj": openai("history"),
    "tau-bench/MockAirlineDomainEnv-few_shot.jsonl": spoken,
    "toolbench/G1_query.json": toolbench,
    "torchspec/eval_conversations.jsonl": openai("conversations"),
    "torchspec/sample_conversations.jsonl": openai("conversations"),
    "torchspec/sample_kimi_k25_conversations.jsonl": openai("conversations"),
    "torchtune/alpaca_tiny.json": asked("instruction", "output", "input"),
    "torchtune/chat_tiny.json": sharegpt(),
    "xtuner/mllm_sft_text_example_data.jsonl": openai("messages"),
    "xtuner/multi_turn_1.json": pairs("messages", "toy_input", "toy_output", "toy_system"),
    "xtuner/qwen35_tokenize_data.jsonl": openai("messages", "tools"),
    "xtuner/single_turn.json": asked("toy_input", "toy_output", system="toy_system"),
}
"""How each file that holds conversations or prompts is read."""

WANTED: dict[str, Callable[[Any], bool]] = {
    "adp/swe-gym_openhands_sampled_trajectories.sample_raw.json": lambda row: row["resolved"],
    "pydantic-ai/cassettes_as_rows.jsonl": lambda row: row["response"]["status"]["code"] == 200,
}
"""Rows that the declaration keeps by `where`."""

WHOLE_FILES = ("mini-swe-agent/local.traj.json", "openhands/trajs_basic.json")
"""Files that are one conversation, a list of its turns or events."""
