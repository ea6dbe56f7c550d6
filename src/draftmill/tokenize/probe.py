"""`draftmill check-template`: what a target's chat template does, found out by rendering with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from draftmill.config import build
from draftmill.console import say
from draftmill.errors import ConfigError, UsageError, did_you_mean
from draftmill.target import ModelSource, ReasoningTags, Renderer, RenderError, Target, prepare
from draftmill.tokenize.mask import common_prefix, merged
from draftmill.tokenize.rows import Answered, Tokenizer
from draftmill.tokenize.show import coloured

Message = dict[str, Any]
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_CALL = {
    "id": "functions.look_up:0",
    "type": "function",
    "function": {"name": "look_up", "arguments": {"word": "mill"}},
}
_ASK: list[Message] = [{"role": "user", "content": "What is a mill?"}]
_LOOP: list[Message] = [
    {"role": "assistant", "content": "I look it up.", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": _CALL["id"], "content": "A machine that grinds."},
    {"role": "assistant", "content": "A machine that grinds corn."},
]
_MORE: list[Message] = [
    {"role": "user", "content": "And a draft?"},
    {"role": "assistant", "content": "A first version."},
]
_SYSTEM: list[Message] = [{"role": "system", "content": "Answer briefly."}]


def load_target(name: str) -> Target:
    """A file of conf/target by name, or a folder with a tokenizer. Raises UsageError, ConfigError."""
    file = Path("conf/target", f"{name}.yaml")
    if file.is_file():
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
        return build(Target, {**loaded, "template_digest": None}, file=str(file), key="")
    if Path(name).is_dir():
        source = ModelSource(path=os.fspath(name))
        return Target(name=Path(name).name, source=source, reasoning=ReasoningTags(), max_seq_len=1 << 20)
    known = [path.stem for path in Path("conf/target").glob("*.yaml")]
    raise UsageError(f"'{name}' is neither a target nor a folder", fix=did_you_mean(name, known))


def check(name: str) -> None:
    """Print what the template of a target does, and one conversation with its trainable tokens coloured."""
    target = load_target(name)
    folder = Path(target.source.path) if target.source.path else prepare(target)
    if not folder.is_dir():
        raise ConfigError("no such folder", file=folder, key="source.path")
    shown = Renderer(target, folder)
    for key, value in facts(shown).items():
        say(f"{key + ':':28}{value}")
    _example(shown)


def facts(shown: Renderer) -> dict[str, str]:
    """What `check` prints, as key: words."""
    template = shown.target.chat_template or "the tokenizer's own"
    kind = f"Jinja, {template}" if shown.template else "Python code of the tokenizer's class"
    return {
        "tokenizer": "Rust" if shown.card.fast else "Python (slow)",
        "rendering": kind,
        "spans are found by": _WAYS[shown.finder.way],
        "ends of a turn": " ".join(shown.ends) or "none known: set end_of_turn",
        "tools": _appears(shown, _ASK, "look_up", [_TOOL]),
        "tool calls": _appears(shown, [*_ASK, *_LOOP], '"mill"', [_TOOL]),
        "tool results": _appears(shown, [*_ASK, *_LOOP], "A machine that grinds.", [_TOOL]),
        "reasoning": _reasoning(shown),
        "default system text": _default_system(shown),
        "history, plain chat": _history(shown, [*_ASK, _LOOP[2], *_MORE], None),
        "history, tool loops": _history(shown, [*_ASK, *_LOOP, *_MORE], [_TOOL]),
        "history, reasoning": _history(shown, [*_ASK, _thought(_LOOP[2]), *_MORE], None),
    }


_WAYS = {
    "generation": "generation blocks of the template",
    "marks": "marks in the turns' fields",
    "boundary": "the render boundary of every turn (slow)",
}


def _thought(message: Message) -> Message:
    return {**message, "reasoning": "The word is old."}


def _appears(shown: Renderer, messages: list[Message], text: str, tools: list[Any] | None) -> str:
    try:
        return "rendered" if text in shown.text(messages, tools, False) else "NOT rendered"
    except RenderError as error:
        return f"refused: {error.message}"


def _reasoning(shown: Renderer) -> str:
    last = _appears(shown, [*_ASK, _thought(_LOOP[2])], "The word is old.", None)
    history = _appears(shown, [*_ASK, _thought(_LOOP[2]), *_MORE], "The word is old.", None)
    return last if last == history else f"{last} in the last turn, {history} in the history"


def _default_system(shown: Renderer) -> str:
    """What stands before the first question beside the header of a user turn."""
    try:
        text = shown.text([*_ASK, _LOOP[2], *_MORE], None, False)
    except RenderError as error:
        return f"refused: {error.message}"
    before = text.partition(_ASK[0]["content"])[0]
    between = text.partition(_LOOP[2]["content"])[2].partition(_MORE[0]["content"])[0]
    header = common_prefix(before[::-1], between[::-1])
    added = before[: len(before) - header].removeprefix(shown.card.variables.get("bos_token", ""))
    return f"adds {added!r}" if added.strip() else "none"


def _history(shown: Renderer, messages: list[Message], tools: list[Any] | None) -> str:
    try:
        rows = shown.rows(messages, tools)
    except RenderError as error:
        return f"refused: {error.message}"
    turns = sum(message["role"] == "assistant" for message in messages)
    found = sum(len(row.turns) for row in rows)
    lost = (
        f"; {turns - found} of {turns} turns are not what their prompt leads to, and never trained"
        if found < turns
        else ""
    )
    return ("kept: one row" if len(rows) == 1 else f"rewritten: {len(rows)} rows for {turns} turns") + lost


def _example(shown: Renderer) -> None:
    for messages, tools in (([*_SYSTEM, *_ASK, *_LOOP], [_TOOL]), ([*_ASK, _LOOP[2]], None)):
        row = Answered(id="", messages=messages, tools=tools, group="", dedup=None, origins={}, served=None)
        result = Tokenizer(shown).chunk([row])[0]
        if not result.reason:
            for part in result.rows:
                coloured(shown, part.input_ids, merged((span.start, span.end) for span in part.spans))
            return
    say(f"no example: {result.reason}: {result.detail}")
