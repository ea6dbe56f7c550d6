"""Names that columns and keys go by, over many published datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

CONVERSATIONS = (
    "messages", "conversations", "conversation", "trajectory", "history", "turns", "dialogue", "dialog", "chat",
)  # fmt: skip
"""Keys that usually hold the conversation, best first."""
REASONING = (
    "reasoning_content", "reasoning", "thinking", "thoughts", "thought", "think", "chain_of_thought", "cot",
    "complex_cot", "thinking_content", "reasoning_trace",
)  # fmt: skip
THOUGHTS = ("analysis", *REASONING)
"""Channels of turns that only think."""
CALLS = ("tool_calls", "function_call", "tool_call")
ACTIONS = (*CALLS, "toolCalls", "actions")
"""Keys of a turn that may hold its calls, in a shape of their own."""
CALL_IDS = ("id", "tool_call_id", "toolCallId", "call_id")
CALL_NAMES = ("name", "API_name", "tool_name", "toolName", "function_name", "tool")
ARGUMENTS = ("arguments", "parameters", "args", "API_params", "input", "params", "kwargs")
RESULT_IDS = ("tool_use_id", *CALL_IDS[1:])
RESULTS = ("result", "output", "content")
"""Where a part that is a result holds it."""
PARAMETERS = ("parameters", "input_schema", "inputSchema", "arguments", "args")
"""What the parameters of a tool are called in its spec."""
FUNCTION_CALLS = ("functionCall", "function_call")
FUNCTION_RESULTS = ("functionResponse", "function_response")
"""Parts that hold a call or a result under this key, and have no type."""
FLAGS = ("loss_weight", "weight", "mask", "train", "trainable", "loss", "is_demo")
SYSTEM = (
    "system", "system_prompt", "system_message", "systemPrompt", "systemInstruction", "system_instruction",
    "instructions", "preamble",
)  # fmt: skip
LABELS = {
    **dict.fromkeys(("prompter", "question", "query", "prompt", "instruction"), "user"),
    **dict.fromkeys(("chatbot", "answer", "response", "completion"), "assistant"),
    **dict.fromkeys(("tool_call", "tool call"), "function_call"),
}
"""What labels mean that extract does not know by itself, so that they are written into `roles`."""
HISTORY = ("history", "chat_history", "conversation_history", "dialog_history")
"""Lists of turns under these keys are what was said before the question in another column."""
ADDRESSEES = ("to", "recipient", "receiver", "target", "reply_to", "next_speaker")
"""Keys of a turn that hold a role too: of who is spoken to."""
SPOKEN_LISTS = ("data", "utterances", "messages", "conversations", "conversation", "dialogue", "dialog", "chat")
"""Lists of texts under these keys are a talk, one speaker after the other; under `turns`, they are questions."""
PARTS = ("text", "image", "image_url", "tool_use", "tool_result", "thinking", "input_text", "output_text")
"""Types of the parts of a content: no speakers."""
TOOLS = ("tools", "functions", "available_tools", "function", "tool_specs", "tool_definitions")
NO_TEXT = (*REASONING, *CALLS, *FLAGS, "id", "name", "tool_call_id", "tool_call_ids", "type")
"""Keys of a turn that are never its text."""

USER = (
    "instruction",
    "query",
    "question",
    "prompt",
    "problem",
    "human",
    "user",
    "input",
    "inputs",
    "problem_statement",
    "user_prompt",
    "user_query",
)
ASSISTANT = (
    "output", "response", "answer", "completion", "solution", "assistant", "gpt", "bot", "targets", "chosen", "target",
    "ideal",
)  # fmt: skip
REFERENCE = {"expected", "final", "correct", "incorrect", "best", "reference", "gold", "ground", "id", "type", "index"}
"""Words in names of columns that hold no model's answer."""
CALLED = ("answers", "tool_calls", "function_calls", "calls", "answer", "function_call")
"""Columns that may hold the calls that answer a question."""
BESIDE = {"instruction": ("input", "query", "question", "context"), "question": ("context",)}
"""Columns that add to an instruction or a question."""
OPTIONS = ("choices", "options", "endings", "candidates")
"""Lists of answers to choose from."""
PASSAGES = ("context", "passage", "document", "article", "background", "support", "paragraph", "story")
"""Columns with the text that a question is about."""
PAIRS = (
    ("instruction", "output"), ("instruction", "response"), ("query", "response"), ("query", "answer"),
    ("question", "answer"), ("prompt", "completion"), ("prompt", "response"), ("problem", "solution"),
    ("text", "code"), ("prompt", "code"),
)  # fmt: skip
"""Columns that belong together, tried before any other combination of USER and ASSISTANT."""


def plain_names(keys: Iterable[str]) -> dict[str, str]:
    """{known name: key}: keys as they are, else without a prefix that several share (`toy_input` is `input`)."""
    listed = list(keys)
    known = {key.lower(): key for key in listed}
    if any(name in known for name in USER):
        return known
    prefixes = Counter(key.split("_", 1)[0] for key in listed if "_" in key)
    for key in listed:
        prefix, _, rest = key.partition("_")
        if rest and prefixes[prefix] > 1:
            known.setdefault(rest.lower(), key)
    return known


def sides(known: Mapping[str, str]) -> tuple[str, str | None] | None:
    """The names that ask and answer among `known` names (the answer may be absent), or None."""
    for asked, answered in PAIRS:
        if asked in known and answered in known:
            return asked, answered
    user = next((name for name in USER if name in known), None)
    if user is None:
        return None
    return user, next((name for name in ASSISTANT if name in known), None)
