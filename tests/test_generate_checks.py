"""Findings of answers, and the estimate of their mean length."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import pytest

from draftmill.generate.checks import Judge, repeats
from draftmill.generate.converse import Told, converse
from draftmill.generate.dialogue import Dialogue
from draftmill.generate.estimate import kaplan_meier, mean_length
from draftmill.generate.meter import Meter
from draftmill.generate.request import Answer, Prompter, Request, RowError
from draftmill.generate.settings import Engine, GenerateRun, Identity, Policy, Sampling
from draftmill.generate.tool_schemas import faults
from draftmill.target import Renderer, Target, renderer

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "pattern": {"type": "string"}},
            "required": ["x"],
        },
    },
}


def call(name: str = "add", arguments: Any = None) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"x": 1}, None),
        ({"x": "1"}, "'1' is not of type 'integer'"),
        ({}, "'x' is a required property"),
        ("{broken", "no JSON object"),
    ],
)
def test_calls_against_the_schema_of_their_tool(arguments: Any, fault: str | None) -> None:
    found = faults(call(arguments=arguments), [TOOL])
    assert (found is None) == (fault is None) and (fault or "") in (found or "")


def test_an_unknown_tool_is_a_fault() -> None:
    assert faults(call("sub", {}), [TOOL]) == "no tool 'sub'"
    assert faults(call("add", {}), None) == "no tool 'add'"


def schema(**parameters: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "add", "parameters": parameters}}]


def test_schemas_from_data_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*arguments: Any, **more: Any) -> None:
        raise AssertionError("a reference was fetched")

    monkeypatch.setattr("socket.socket.connect", no_network)
    assert faults(call(arguments={"x": 1}), schema(**{"$ref": "http://127.0.0.1:9/s.json"})) is None
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"properties": {"a": deep}}
    assert faults(call(arguments={"a": {}}), schema(**deep)) is None
    started = time.monotonic()
    assert faults(call(arguments={"x": "a" * 40 + "!"}), schema(properties={"x": {"pattern": "^(a+)+$"}})) is None
    assert time.monotonic() - started < 1
    assert faults(call(arguments={"x": 1}), schema(type=7)) is None
    recursive = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert faults(call(arguments={"x": 1}), schema(**recursive)) is None


def test_local_references_work() -> None:
    tools = schema(properties={"x": {"$ref": "#/$defs/n"}}, **{"$defs": {"n": {"type": "integer"}}})
    assert faults(call(arguments={"x": "a"}), tools) and faults(call(arguments={"x": 1}), tools) is None


@pytest.mark.parametrize(
    ("text", "degenerate"),
    [
        ("I think that " * 40, True),
        ("prologue. " + "na" * 200, True),
        ("=" * 200, True),
        ("A sensible answer. " * 2, False),
        ("".join(f"{i}. item {i * i}\n" for i in range(100)), False),
        ("x" * 50, False),
        ("", False),
    ],
)
def test_degenerate_repetition(text: str, degenerate: bool) -> None:
    assert repeats(text) == degenerate


@pytest.fixture(scope="module")
def drawn(tiny_target: Target) -> Renderer:
    return renderer(tiny_target)


def flags(
    target: Target,
    drawn: Renderer,
    text: str,
    *,
    end: bool = True,
    tools: list[Any] | None = None,
    engine: Engine | None = None,
) -> tuple[str, ...]:
    ids = drawn.encode(text) + ([drawn.eos_ids[0]] if end else [])
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids)}
    answer = Answer(finish="stop" if end else "length", limit=999, engine="sglang", output_ids=ids, usage=usage)
    return Judge(target, drawn, engine or Engine(name="sglang"))(answer, tools)[1]


CALL = '<tool_call>\n{"name": "add", "arguments": {"x": %s}}\n</tool_call>'


def test_flags(tiny_target: Target, drawn: Renderer) -> None:
    def found(text: str, **more: Any) -> tuple[str, ...]:
        return flags(tiny_target, drawn, text, **more)

    assert found("hello") == ()
    assert found("hello", end=False) == ("truncated",)
    assert found(" \n") == ("empty",)
    assert found("<think>hm</think>hello") == ()
    assert found("<think>hm") == ("reasoning",)
    assert found("<think>hm", end=False) == ("truncated",)
    assert found("<think>a</think>b</think>c") == ("reasoning",)
    assert found(CALL % 1, tools=[TOOL]) == ()
    assert found(CALL % '"a"', tools=[TOOL]) == ("tool_calls",)
    assert found(CALL % "{", tools=[TOOL]) == ("tool_calls",)
    assert found("a<|im_start|>b") == ("special_tokens",)
    assert found("a <b> c <tool>") == ()


def test_counts_that_differ_from_the_tokens_are_flagged(tiny_target: Target, drawn: Renderer) -> None:
    judge = Judge(tiny_target, drawn, Engine(name="sglang"))
    ids = [*drawn.encode("hello"), drawn.eos_ids[0]]

    def flagged(count: int) -> bool:
        answer = Answer(finish="stop", limit=9, engine="sglang", output_ids=ids, usage={"completion_tokens": count})
        return "usage" in judge(answer, None)[1]

    assert [flagged(count) for count in (4, 5, 6, 7)] == [True, False, False, True]


def test_a_chat_answer_is_rebuilt_and_its_provider_checked(tiny_target: Target, drawn: Renderer) -> None:
    engine = Engine(name="openai", identity=Identity(model="m", provider=("moonshotai/fp8",)))
    judge = Judge(tiny_target, drawn, engine)
    message = {"role": "assistant", "content": "<think>hm</think>hello"}

    def judged(served: str, count: int) -> tuple[dict[str, Any], tuple[str, ...]]:
        usage = {"completion_tokens": count}
        return judge(Answer(finish="stop", limit=9, engine=served, message=message, usage=usage), None)

    parsed, found = judged("openai:Moonshot AI", 9)
    assert parsed == {"role": "assistant", "content": "hello", "reasoning": "hm"} and found == ("retokenized",)
    assert judged("openai:Other", 200)[1] == ("usage", "provider", "retokenized")


def converse_with(target: Target, drawn: Renderer, texts: list[str], policy: Policy, **more: Any) -> Told | RowError:
    sampling = Sampling(max_new_tokens=8, retry_max_new_tokens=64, policy=policy)
    engine = Engine(name="sglang")
    dialogue = Dialogue(
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], None, more.get("keep", "each_user")
    )
    row = converse(dialogue, Prompter(target, engine, sampling, drawn), Judge(target, drawn, engine), policy)
    try:
        request = next(row)
        for text in texts:
            ids = [*drawn.encode(text), drawn.eos_ids[0]]
            whole = Answer(finish="stop", limit=request.limit, engine="sglang", output_ids=ids)
            request = row.send(whole.within(request.limit))
    except StopIteration as told:
        result: Told = told.value
        return result
    except RowError as error:
        return error
    raise AssertionError("more questions than answers")


def test_policies(tiny_target: Target, drawn: Renderer) -> None:
    def told(texts: list[str], **policy: Any) -> Told | RowError:
        return converse_with(tiny_target, drawn, texts, Policy(**policy))

    both = told(["one", "two"])
    assert isinstance(both, Told) and [p for p, *_ in both.turns] == [1, 3]
    dropped = told([""])
    assert isinstance(dropped, RowError) and dropped.reason == "empty"
    first_only = told(["one", ""])
    assert isinstance(first_only, Told) and len(first_only.said) == 2 and first_only.ended == "empty"
    cut = told(["a long answer"])
    assert isinstance(cut, Told) and cut.ended == "truncated" and cut.turns[0][3] == ("truncated",)
    longer = told(["a long answer", "a long answer", "two"], truncated="retry")
    assert isinstance(longer, Told) and longer.turns[0][1].limit == 64 and longer.turns[0][3] == ()
    refused = told(["a long answer"], truncated="drop")
    assert isinstance(refused, RowError) and refused.reason == "truncated"


def test_a_prompt_longer_than_the_context_is_a_reject(tiny_target: Target, drawn: Renderer) -> None:
    engine, sampling = Engine(name="sglang"), Sampling()
    dialogue = Dialogue([{"role": "user", "content": "x" * 5000}], None, "first_user")
    row = converse(
        dialogue, Prompter(tiny_target, engine, sampling, drawn), Judge(tiny_target, drawn, engine), Policy()
    )
    with pytest.raises(RowError) as caught:
        next(row)
    assert caught.value.reason == "too_long"


def test_kaplan_meier_by_hand() -> None:
    # The example of a textbook: events at 1, 3, 3, 6; censored at 2 and 5.
    curve = kaplan_meier([1, 3, 3, 6], [2, 5])
    assert [t for t, _ in curve] == [1, 3, 6]
    assert [s for _, s in curve] == pytest.approx([5 / 6, 5 / 6 * 2 / 4, 0])
    assert mean_length([1, 3, 3, 6], [2, 5], 100) == pytest.approx(1 + 2 * 5 / 6 + 3 * 5 / 12)


def test_without_censoring_it_is_the_mean() -> None:
    lengths = [random.Random(1).expovariate(0.01) for _ in range(500)]
    assert mean_length(lengths, [], 1e9) == pytest.approx(sum(lengths) / 500)
    assert math.isnan(mean_length([], [5.0], 10))


@pytest.mark.parametrize("seed", range(5))
def test_the_estimate_at_a_fifth_of_a_run(seed: int) -> None:
    """Log-normal lengths, 500 requests in flight, every token taking the same time: within a tenth of the truth."""
    draw = random.Random(seed)
    lengths = [min(draw.lognormvariate(6.5, 1.0), 16384.0) for _ in range(10_000)]
    finished, running = at_share(lengths, 500, 0.2)
    truth, naive = sum(lengths) / len(lengths), sum(finished) / len(finished)
    assert abs(mean_length(finished, running, 16384) / truth - 1) < 0.1
    assert naive < 0.95 * truth


def at_share(lengths: list[float], slots: int, share: float) -> tuple[list[float], list[float]]:
    """(finished lengths, lengths so far of those in flight) when so many of the requests are done."""
    import heapq

    waiting = iter(lengths)
    busy = [(next(waiting), 0.0) for _ in range(slots)]
    heapq.heapify(busy)
    finished: list[float] = []
    now = 0.0
    while len(finished) < share * len(lengths):
        now, begun = heapq.heappop(busy)
        finished.append(now - begun)
        heapq.heappush(busy, (now + next(waiting), now))
    return finished, [now - begun for _, begun in busy]


def test_the_progress_line_tells_both_means_and_what_it_will_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("draftmill.generate.meter.time.monotonic", lambda: clock[0])
    meter = Meter(GenerateRun(max_cost_usd=100.0), engine_line=lambda: "4 in flight, http_429 2")
    requests = [Request(key=f"{i:032x}", limit=1000, prompt_ids=[1], messages=[]) for i in range(20)]
    for request in requests:
        meter.asked(request)
    for i, request in enumerate(requests[:10]):  # ten tokens a second: lengths 10, 20, ... 100
        clock[0] = i + 1.0
        usage = {"completion_tokens": 10 * (i + 1), "cost": 0.01 * (i + 1)}
        meter.ended(request, Answer(finish="stop", limit=1000, engine="e", usage=usage))
    naive, estimate = meter.mean()
    assert naive == 55 and estimate > 75, "ten more answers are longer than 100 tokens"
    note = meter.note(0.5)
    assert f"answers {estimate:.0f} tokens (finished ones 55)" in note and "0.55 of about" in note
    assert float(note.split("of about ")[1].split()[0]) > 0.55 * (1 + estimate / 55) * 0.99
    assert note.endswith("4 in flight, http_429 2")
    assert meter.exhausted() is None


def test_many_answers_keep_the_meter_small() -> None:
    meter = Meter(GenerateRun())
    request = Request(key="0" * 32, limit=1000, prompt_ids=[1], messages=[])
    for _ in range(10_000):
        meter.asked(request)
        meter.ended(request, Answer(finish="stop", limit=9, engine="e", usage={"completion_tokens": 5}))
    assert len(meter._lengths) == 4096 and meter.mean() == (5, 5)
