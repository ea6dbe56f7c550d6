"""Forms that published datasets have, with made-up rows: what `inspect` has to propose for each."""

from __future__ import annotations

import json
from typing import Any

ROWS = range(6)
SPEC = {"name": "look_up", "description": "d", "parameters": {"type": "object", "properties": {}}}
TWO = ["user", "assistant"]
ANTHROPIC_TURNS = [
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "let me see"},
            {"type": "tool_use", "id": "t", "name": "look_up", "input": {"a": 0.7}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "It is 42."}]},
]


def user(i: int) -> dict[str, Any]:
    return {"role": "user", "content": f"question {i} of a person"}


def bot(i: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {i} of a model"}


def said(speaker: str, text: str) -> dict[str, Any]:
    return {"from": speaker, "value": text}


# form: (one row or more, the schema proposed, `source.rows`, roles of a record with all its turns)
FORMS: dict[str, tuple[Any, dict[str, Any], str | None, list[str]]] = {
    "lines that are lists": ([[user(i), bot(i)] for i in ROWS], {"turns": {"each": "$"}}, None, TWO),
    "a conversation as JSON text": (
        [{"messages": json.dumps([user(i), bot(i)]), "tools": json.dumps([SPEC])} for i in ROWS],
        {"turns": {"each": "messages"}, "tools": "tools", "decode": ["messages"]},
        None,
        TWO,
    ),
    "turns that are JSON texts": (
        [{"messages": [json.dumps(user(i)), json.dumps(bot(i))]} for i in ROWS],
        {"turns": {"each": "messages"}, "decode": ["messages[*]"]},
        None,
        TWO,
    ),
    "a preference pair whose answers are turns": (
        [
            {"conversations": [said("human", f"q{i}")], "chosen": said("gpt", "yes"), "rejected": said("gpt", "no")}
            for i in ROWS
        ],
        {
            "turns": [
                {"each": "conversations", "role": "from", "text": "value"},
                {"each": "chosen", "role": "from", "text": "value"},
            ]
        },
        None,
        TWO,
    ),
    "a prompt and an answer that are both lists": (
        [{"prompt": [user(i)], "chosen": [bot(i)], "rejected": [bot(9)]} for i in ROWS],
        {"turns": [{"each": "prompt"}, {"each": "chosen"}]},
        None,
        TWO,
    ),
    "input turns and an output column": (
        [{"input": [user(i)], "output": f"a{i}", "system_prompt": "think"} for i in ROWS],
        {"turns": [{"each": "input"}, {"role": {"as": "assistant"}, "text": "output"}], "system": "system_prompt"},
        None,
        ["system", *TWO],
    ),
    "system, question and response": (
        [{"id": f"x{i}", "system_prompt": "be brief" if i else "", "question": f"q{i}", "response": "r"} for i in ROWS],
        {
            "turns": [{"role": {"as": "user"}, "text": "question"}, {"role": {"as": "assistant"}, "text": "response"}],
            "system": "system_prompt",
            "id": "id",
        },
        None,
        ["system", *TWO],
    ),
    "instruction, context and response": (
        [{"instruction": f"do {i}", "context": "it" if i % 2 else "", "response": "r", "category": "c"} for i in ROWS],
        {
            "turns": [
                {"role": {"as": "user"}, "text": {"join": ["instruction", "context"], "by": "\n\n"}},
                {"role": {"as": "assistant"}, "text": "response"},
            ]
        },
        None,
        TWO,
    ),
    "query, and calls as the answer": (
        [
            {"id": i, "query": f"q{i}", "answers": json.dumps([{"name": "look_up"}]), "tools": json.dumps([SPEC])}
            for i in ROWS
        ],
        {"prompt": "query", "tools": "tools", "id": "id"},
        None,
        ["user"],
    ),
    "a list of rows inside one object": (
        {"version": 1, "data": [{"messages": [user(i), bot(i)]} for i in ROWS]},
        {"turns": {"each": "messages"}},
        "data[*]",
        TWO,
    ),
    "one trace, and steps that each repeat what came before": (
        {
            "trajectory": [{"action": "ls", "query": [user(1), bot(1)]}, {"action": "cat", "query": [user(1), bot(1)]}],
            "history": [user(1), bot(1), user(2), bot(2)],
        },
        {"turns": {"each": "history"}},
        None,
        [*TWO, *TWO],
    ),
    "a map of rows": (
        {f"r{i}": {"messages": [user(i), bot(i)]} for i in ROWS},
        {"turns": {"each": "messages"}},
        "*",
        TWO,
    ),
    "one list of turns": (
        [{"role": "system", "content": "s"}, user(1), bot(1)],
        {"turns": {"each": "$"}},
        "$",
        ["system", *TWO],
    ),
    "requests, and responses that are rows too": (
        [
            {"type": kind, "id": f"{kind}{i}", "body": {"messages": [user(i), bot(i)]} if kind == "request" else "429"}
            for i in ROWS
            for kind in ("request", "response")
        ],
        {"turns": {"each": "body.messages"}, "id": "id", "where": '@.type == "request"'},
        None,
        TWO,
    ),
    "a conversation deep inside": (
        [{"sample": {"chat": {"messages": [user(i), bot(i)]}}} for i in ROWS],
        {"turns": {"each": "sample.chat.messages"}},
        None,
        TWO,
    ),
    "two names of the conversation": (
        [{"messages" if i % 2 else "conversation": [user(i), bot(i)]} for i in ROWS],
        {"turns": {"each": ["messages", "conversation"]}},
        None,
        TWO,
    ),
    "role names in capitals": (
        [
            {"talk": [{"speaker": "User", "utterance": f"q{i}"}, {"speaker": "Assistant", "utterance": "a"}]}
            for i in ROWS
        ],
        {
            "turns": {"each": "talk", "role": "speaker", "text": "utterance"},
            "roles": {"User": "user", "Assistant": "assistant"},
        },
        None,
        TWO,
    ),
    "one unknown label where nobody else answers": (
        [
            {"steps": [{"source": s, "content": f"{s} {i}"} for s in ("user", "agent", "environment", "agent")]}
            for i in ROWS
        ],
        {"turns": {"each": "steps", "role": "source"}, "roles": {"agent": "assistant"}},
        None,
        [*TWO, "tool", "assistant"],
    ),
    "keys one level down": (
        [
            {
                "turns": [
                    {"author": {"role": r}, "content": {"content_type": "text", "parts": [f"{r} {i}"]}} for r in TWO
                ]
            }
            for i in ROWS
        ],
        {"turns": {"each": "turns", "role": "author.role", "text": "content.parts"}},
        None,
        TWO,
    ),
    "reasoning under another key": (
        [{"messages": [user(i), {**bot(i), "thinking": "a longer thought than the answer itself"}]} for i in ROWS],
        {"turns": {"each": "messages", "reasoning": "thinking"}},
        None,
        TWO,
    ),
    "tools inside the system text": (
        [
            {
                "conversations": [
                    said("system", f"Use <tools>{json.dumps(SPEC)}</tools>."),
                    said("human", f"q{i}"),
                    said("gpt", "a"),
                ]
            }
            for i in ROWS
        ],
        {
            "turns": {"each": "conversations", "role": "from", "text": "value"},
            "tools": {"from": "system", "between": ["<tools>", "</tools>"], "twice": "strip"},
        },
        None,
        ["system", *TWO],
    ),
    "tools in the system text and in a column": (
        [
            {
                "conversations": [
                    said("system", f"Use <tools>{json.dumps(SPEC)}</tools>."),
                    said("human", f"q{i}"),
                    said("gpt", "a"),
                ],
                "tools": json.dumps([SPEC]),
            }
            for i in ROWS
        ],
        {
            "turns": {"each": "conversations", "role": "from", "text": "value"},
            "tools": {"path": "tools", "twice": "strip"},
        },
        None,
        ["system", *TWO],
    ),
    "calls, results and thoughts as parts": (
        [
            {
                "system": "be kind",
                "messages": [{"role": "user", "content": [{"type": "text", "text": f"q{i}"}]}, *ANTHROPIC_TURNS],
                "tools": [{"name": "look_up", "description": "looks up", "input_schema": {"type": "object"}}],
            }
            for i in ROWS
        ],
        {
            "turns": {
                "each": "messages",
                "parts": "drop",
                "reasoning": "content[type=thinking].thinking",
                "tool_calls": {"each": "content[type=tool_use]", "id": "id", "name": "name", "arguments": "input"},
                "role": {
                    "@.content[?@.type == 'tool_result']": "tool",
                    '@.role == "user"': "user",
                    '@.role == "assistant"': "assistant",
                },
                "text": ["content[type=tool_result].content", "content"],
            },
            "system": "system",
            "tools": {"each": "tools", "name": "name", "description": "description", "parameters": "input_schema"},
        },
        None,
        ["system", *TWO, "tool", "assistant"],
    ),
    "speakers at the beginning of lines": (
        [
            {"chosen": f"\n\nHuman: hi {i}\n\nAssistant: hello", "rejected": f"\n\nHuman: hi {i}\n\nAssistant: go"}
            for i in ROWS
        ],
        {"turns": {"text": "chosen", "split": {"user": "Human:", "assistant": "Assistant:", "at": "line"}}},
        None,
        TWO,
    ),
    "speakers in chat marks": (
        [{"text": f"<|im_start|>user\nhi {i}<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"} for i in ROWS],
        {
            "turns": {
                "text": "text",
                "split": {
                    "user": "<|im_start|>user",
                    "assistant": "<|im_start|>assistant",
                    "at": "any",
                    "strip": ["<|im_end|>"],
                },
            }
        },
        None,
        TWO,
    ),
    "speakers and functions in two texts": (
        [
            {
                "system": f"SYSTEM: Use these functions if required -\n{json.dumps(SPEC, indent=1)}\n",
                "chat": f"USER: hi {i}\n\nASSISTANT: hello <|endoftext|>\n\nFUNCTION RESPONSE: 1\n\nASSISTANT: one\n",
            }
            for i in ROWS
        ],
        {
            "turns": [
                {"text": "system", "split": {"system": "SYSTEM:", "at": "line"}},
                {
                    "text": "chat",
                    "split": {
                        "user": "USER:",
                        "assistant": "ASSISTANT:",
                        "tool": "FUNCTION RESPONSE:",
                        "at": "line",
                        "strip": ["<|endoftext|>"],
                    },
                },
            ],
            "tools": {"from": "system", "between": ["these functions if required -", ""], "twice": "strip"},
        },
        None,
        ["system", *TWO, "tool", "assistant"],
    ),
}
