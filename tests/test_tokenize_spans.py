"""The spans of every turn against the oracle, over all template families, on generated conversations."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Message, Oracle, make_target
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from draftmill.target import Renderer, renderer
from draftmill.target.encoding import Piece
from draftmill.tokenize.rows import Answered, Tokenizer

NAMES = sorted(FAMILIES)
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "search", "description": "Look.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}},
]


class Bench:
    """One family: its renderer and its oracle."""

    def __init__(self, name: str, folder: Path) -> None:
        self.target = make_target(name, folder / name)
        self.renderer: Renderer = renderer(self.target)
        self.tokenizer = Tokenizer(self.renderer)
        self.oracle = Oracle(self.target, self.renderer.ends)

    def tokenize(self, messages: list[Message], tools: Any) -> Any:
        """The stage's result for one conversation."""
        answered = Answered(id="a", messages=messages, tools=tools, group="g", dedup=None, origins={}, served=None)
        return self.tokenizer.chunk([answered])[0]


@pytest.fixture(scope="session")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """name -> Bench, made at first use in a folder of the session."""
    folder = tmp_path_factory.mktemp("families")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTMILL_KEEP", str(folder / "keep"))
        yield cache(lambda name: Bench(name, folder))


def markers(name: str) -> list[str]:
    """Texts that a naive search would take for the template's own."""
    family = FAMILIES[name]
    return [*family.eos, *family.specials, family.bos, "<|im_start|>assistant\n", "<tool_call>\n{}\n</tool_call>"]


def texts(name: str) -> st.SearchStrategy[str]:
    """Contents: words, markers of templates and of this program, blanks, and Unicode that breaks naive code."""
    odd = ["zQj7f1o", "zQj7", "</think>", "<think>", "{}", '"', "\\n", "[INST]", "<tool_call>"]
    odd += ["e\u0301", "é", "\U0001f469\u200d\U0001f467", "\u05e9\u05dc\u05d5\u05dd", "\u202e", "\u0130", "\x00"]
    part = st.one_of(
        st.sampled_from(["hello", "the file", "42", " ", "\n", "\n\n", "\t", *odd]),
        st.sampled_from(markers(name)),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
    )
    return st.one_of(st.just("fine."), st.lists(part, min_size=1, max_size=5).map("".join), st.just("") | part)


@st.composite
def conversations(draw: st.DrawFn, name: str) -> tuple[list[Message], Any]:
    """Messages and tools: one to four questions, each with tool loops, some reasoning, some endings on tool."""
    text = texts(name)
    messages: list[Message] = [{"role": "system", "content": draw(text)}] if draw(st.booleans()) else []
    tools = draw(st.sampled_from([None, TOOLS]))
    arguments = st.dictionaries(st.sampled_from(["q", "n"]), st.one_of(st.integers(0, 9), text), max_size=2)
    for _ in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(text)})
        for _ in range(draw(st.integers(0, 2))):
            calls = [
                {
                    "id": f"functions.run:{i}",
                    "type": "function",
                    "function": {"name": "run", "arguments": draw(arguments)},
                }
                for i in range(draw(st.integers(1, 2)))
            ]
            messages.append({**_answer(draw, text), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(text)} for call in calls]
        if draw(st.integers(0, 9)):
            messages.append(_answer(draw, text))
    return messages, tools


def _answer(draw: st.DrawFn, text: st.SearchStrategy[str]) -> Message:
    message: Message = {"role": "assistant", "content": draw(text)}
    return {**message, "reasoning": draw(text)} if draw(st.integers(0, 2)) == 0 else message


def assert_exact(bench: Bench, messages: list[Message], tools: Any) -> None:
    """Every turn that the oracle knows is in one row, with the oracle's prompt and answer, to the token."""
    result = bench.tokenize(messages, tools)
    special = any(bench.renderer.finder.specials.search(text) for text in strings([messages, tools]))
    if result.reason == "template":
        assert special, result.detail
        return
    assert not result.reason, (result.reason, result.detail)
    wanted = bench.oracle.turns(messages, tools)
    seen = [span.turn for row in result.rows for span in row.spans]
    assert sorted(seen) == sorted(wanted)
    for row, text in zip(result.rows, result.texts, strict=True):
        for span in row.spans:
            prompt, answer = wanted[span.turn]
            ids = row.input_ids[span.start : span.end]
            assert text.startswith(prompt + answer)
            assert row.input_ids[: span.start] == bench.renderer.prompt_ids(messages[: span.turn], tools)
            if not special:
                assert ids == bench.renderer.encoder.encode([Piece(answer)])[0]
            assert normal(bench, bench.renderer.decode(ids)) == normal(bench, answer)


def normal(bench: Bench, text: str) -> str:
    """Without what the tokenizer itself changes: normalization, and SentencePiece's leading blank."""
    return bench.renderer.encoder.normalize(text).lstrip(" ")


def strings(value: Any) -> list[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    return [text for item in value for text in strings(item)] if isinstance(value, list) else []


QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink])
SLOW = settings(QUICK, max_examples=2000, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", NAMES)
def test_no_disagreement_with_the_oracle(benches: Any, name: str) -> None:
    @QUICK
    @given(conversations(name))
    def check(conversation: tuple[list[Message], Any]) -> None:
        assert_exact(benches(name), *conversation)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_disagreement_with_the_oracle_on_many(benches: Any, name: str) -> None:
    @SLOW
    @given(conversations(name))
    def check(conversation: tuple[list[Message], Any]) -> None:
        assert_exact(benches(name), *conversation)

    check()
