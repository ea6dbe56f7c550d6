"""The HTTP client against a server on real sockets that misbehaves: nothing lost, nothing doubled, nothing wasted."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, answer_ids, prompt_digest

from draftmill.errors import BuildError, ConfigError, DraftmillError
from draftmill.generate.converse import Told
from draftmill.generate.engines import _wire
from draftmill.generate.http import HOPELESS, Http, seconds_of
from draftmill.generate.meter import Meter
from draftmill.generate.preflight import Wanted, wanted
from draftmill.generate.request import Answer, Request
from draftmill.generate.session import Row, Session, run
from draftmill.generate.settings import Engine, GenerateRun, Identity, Prices, Sampling
from draftmill.generate.store import Store
from draftmill.target import ModelSource, Target

ENGINES = ("sglang", "vllm", "openai")
QUICK: dict[str, Any] = {
    "backoff_s": 0.01,
    "backoff_max_s": 0.05,
    "timeout_s": 20.0,
    "stall_timeout_s": 0.5,
    "concurrency": 32,
}


def engine_of(name: str, **more: Any) -> Engine:
    identity = Identity(model="tiny") if name == "openai" else Identity()
    return Engine(name=name, **{"identity": identity, **more})  # type: ignore[arg-type]


def question(number: int, limit: int = 64) -> Request:
    ids = [number % 200, number // 200 % 200, number // 40000, 7]
    messages = [{"role": "user", "content": f"question {number}"}]
    key = hashlib.sha256(str(number).encode()).hexdigest()[:32]
    return Request(key=key, limit=limit, prompt_ids=ids, messages=messages)


def digest_of(name: str, request: Request) -> str:
    return prompt_digest(
        {"messages": request.messages, "tools": None} if name == "openai" else {"prompt": request.prompt_ids}
    )


def row(request: Request) -> Row:
    answer = yield request
    return Told(said=[], turns=[(0, request, answer, ())])


class Asked:
    """One run of questions against servers, with its session, engine and store."""

    def __init__(self, folder: Path, name: str, urls: list[str], count: int = 60, **changes: Any) -> None:
        self.name, self.requests = name, [question(i) for i in range(count)]
        engine = changes.pop("engine", None) or engine_of(name)
        self.run = GenerateRun(urls=tuple(urls), **{**QUICK, **changes})
        self.wire = _wire(engine, Sampling(), (2,))

        async def found() -> tuple[str, ...]:
            return self.run.urls

        self.http = Http(self.wire, found, engine, self.run, Wanted(names=("tiny",), context=512))
        self.folder = folder
        self.meter = Meter(self.run)

    def go(self) -> Session:
        with Store(self.folder / "answers.sqlite") as self.store:
            self.session = Session(self.http, self.store, self.meter)
            run(self.session, (row(request) for request in self.requests))
            return self.session

    def stored(self) -> dict[int, Answer | None]:
        with Store(self.folder / "answers.sqlite") as store:
            return {i: store.get(request.key, request.limit) for i, request in enumerate(self.requests)}

    def require_true(self) -> None:
        """Every question has the answer that the server gives to that very question."""
        for i, answer in self.stored().items():
            assert answer is not None, i
            ids, finish = answer_ids(digest_of(self.name, self.requests[i]), 64)
            assert answer.finish == finish
            if self.name != "openai":
                assert answer.output_ids == ids
            else:
                assert answer.message == {"role": "assistant", "content": "".join(chr(t) for t in ids if t != 2)}


@pytest.mark.parametrize("name", ENGINES)
def test_every_question_is_asked_once_and_answered(name: str, tmp_path: Path) -> None:
    with Loopback() as server:
        asked = Asked(tmp_path, name, [server.url])
        session = asked.go()
        assert session.counts == {"asked": 60}
        assert server.requests == 60 and set(server.asked.values()) == {1}
        asked.require_true()
        again = Asked(tmp_path, name, [server.url])
        assert again.go().counts == {"reused": 60}
        assert server.requests == 60


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("429", "http_429"),
        ("429_after", "http_429"),
        ("500", "http_500"),
        ("503", "http_503"),
        ("reset", "connection"),
        ("half", "connection"),
        ("stall", "timeout"),
        ("invalid", "invalid"),
        ("foreign", "invalid"),
        ("error_in_200", "http_502"),
    ],
)
def test_a_fault_that_passes_is_asked_again(name: str, fault: str, kind: str, tmp_path: Path) -> None:
    def faults(digest: str, attempt: int) -> str | None:
        return fault if attempt == 0 and int(digest, 16) % 3 == 0 else None

    with Loopback(faults) as server:
        asked = Asked(tmp_path, name, [server.url])
        session = asked.go()
        bad = sum(int(digest_of(name, request), 16) % 3 == 0 for request in asked.requests)
        assert bad > 5
        assert session.counts == {"asked": 60} and not session.failures
        assert server.requests == asked.http.requests == 60 + bad
        assert asked.http.retries == {kind: bad}
        assert set(server.served.values()) == {1} and len(server.served) == 60
        asked.require_true()


@pytest.mark.parametrize("fault", ["double", "swap"])
@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_the_answer_to_another_question_is_not_taken(name: str, fault: str, tmp_path: Path) -> None:
    def faults(digest: str, attempt: int) -> str | None:
        return fault if attempt == 0 and int(digest, 16) % 4 == 0 else None

    with Loopback(faults) as server:
        asked = Asked(tmp_path, name, [server.url])
        assert asked.go().counts == {"asked": 60}
        assert set(asked.http.retries) == {"invalid"}
        asked.require_true()


def test_a_chat_answer_that_comes_twice_is_not_taken_twice(tmp_path: Path) -> None:
    with Loopback(lambda digest, attempt: "double" if attempt == 0 and int(digest, 16) % 4 == 0 else None) as server:
        asked = Asked(tmp_path, "openai", [server.url], concurrency=1)
        asked.go()
        assert asked.http.retries["invalid"] > 5
        asked.require_true()


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with Loopback(lambda digest, attempt: "silent" if attempt == 0 and int(digest, 16) % 4 == 0 else None) as server:
        asked = Asked(tmp_path, "vllm", [server.url], count=30, timeout_s=1.0)
        assert asked.go().counts == {"asked": 30}
        assert asked.http.retries["timeout"] >= 3
        asked.require_true()


def test_retry_after_is_waited_for(tmp_path: Path) -> None:
    with Loopback(lambda digest, attempt: "429_after" if attempt == 0 else None) as server:
        started = time.monotonic()
        Asked(tmp_path, "sglang", [server.url], count=1).go()
        assert time.monotonic() - started >= 0.3
        assert server.requests == 2


def test_retry_after_forms() -> None:
    assert seconds_of(None) == seconds_of("soon") == 0
    assert seconds_of("1.5") == 1.5
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert seconds_of("1e9") == 600


@pytest.mark.parametrize(("fault", "reason"), [("500", "failed"), ("invalid", "invalid"), ("400", "refused")])
def test_a_row_that_never_gets_an_answer_is_a_counted_failure(fault: str, reason: str, tmp_path: Path) -> None:
    def faults(digest: str, attempt: int) -> str | None:
        return fault if digest in bad else None

    bad = {digest_of("sglang", question(i)) for i in (3, 17)}
    with Loopback(faults) as server:
        asked = Asked(tmp_path, "sglang", [server.url], attempts=4)
        session = asked.go()
        assert session.counts == {"asked": 58, f"failed:{reason}": 2}
        assert {error.reason for error in session.failures.values()} == {reason}
        assert server.requests == 58 + 2 * (1 if reason == "refused" else 4)
        assert sum(answer is None for answer in asked.stored().values()) == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("401", "API key"),
        ("403", "API key"),
        ("404", "no such model"),
        ("400", "were all refused"),
        ("foreign", "were all refused"),
    ],
)
def test_what_will_not_get_better_ends_the_run_at_once(fault: str, words: str, tmp_path: Path) -> None:
    with Loopback(lambda digest, attempt: fault, delay_s=0.01) as server:
        asked = Asked(tmp_path, "sglang", [server.url], count=3000, concurrency=512, attempts=2)
        started = time.monotonic()
        with pytest.raises(BuildError, match=words):
            asked.go()
        assert time.monotonic() - started < 5
        assert server.requests <= 16 * HOPELESS


def test_rows_that_an_earlier_run_left_over_do_not_end_the_run(tmp_path: Path) -> None:
    bad = {digest_of("sglang", question(i)) for i in range(30)}
    with Loopback(lambda digest, attempt: "400" if digest in bad else None) as server:
        session = Asked(tmp_path, "sglang", [server.url], count=30).go()
        assert session.counts == {"failed:refused": 30} and server.requests == 31


def test_an_older_sglang_is_known_too(tmp_path: Path) -> None:
    with Loopback(info_path="/get_model_info") as server:
        assert Asked(tmp_path, "sglang", [server.url], count=3).go().counts == {"asked": 3}


def test_what_the_first_look_finds(tmp_path: Path) -> None:
    with Loopback(models=("tiny-1b", "other"), context=256) as server:
        with pytest.raises(BuildError, match=r"does not serve 'tiny'.*\n.*\n.*did you mean 'tiny-1b'"):
            Asked(tmp_path, "openai", [server.url]).go()
        assert server.requests == 0
    with Loopback(context=256) as server:
        with pytest.raises(BuildError, match="context is 256 tokens, the target's 512"):
            Asked(tmp_path, "vllm", [server.url]).go()
        assert server.requests == 0
    with Loopback(speaks=("openai",)) as server:
        for name in ("sglang", "vllm"):
            with pytest.raises(BuildError, match="does not speak"):
                Asked(tmp_path, name, [server.url]).go()
    with pytest.raises(BuildError, match="no server answers"):
        Asked(tmp_path, "sglang", [server.url]).go()


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_server_of_another_model_is_known_before_the_first_question(name: str, tmp_path: Path) -> None:
    """One wrong server among right ones is enough: half of the answers would be another model's."""
    with Loopback() as right, Loopback(models=("/models/Tiny-1B",)) as wrong:
        began = time.monotonic()
        message = r"serves another model than the target tiny(.|\n)*/models/Tiny-1B(.|\n)*run.generate.served_as"
        with pytest.raises(BuildError, match=message):
            Asked(tmp_path, name, [right.url, wrong.url], count=3000).go()
        assert time.monotonic() - began < 5 and right.requests == wrong.requests == 0
    with Loopback(models=("other", "/models/tiny")) as several:
        if name == "vllm":  # one of several models of a server is asked for by its name
            assert Asked(tmp_path, name, [several.url], count=3).go().counts == {"asked": 3}
            assert several.bodies[0]["model"] == "/models/tiny"


def test_a_chat_endpoint_whose_list_of_models_is_broken_is_asked_all_the_same(tmp_path: Path) -> None:
    with Loopback(list_status=500) as server:
        assert Asked(tmp_path, "openai", [server.url], count=3).go().counts == {"asked": 3}
    with Loopback(list_status=503) as server, pytest.raises(BuildError, match="no server answers"):
        Asked(tmp_path, "openai", [server.url], count=30).go()


def test_names_by_which_servers_know_the_target() -> None:
    hub = Target(name="qwen3-8b-chat", source=ModelSource(hub="Qwen/Qwen3-8B"), max_seq_len=512)
    found = wanted(hub, GenerateRun())
    assert found == Wanted(names=("qwen3-8b-chat", "Qwen/Qwen3-8B"), context=512)
    cached = "/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123abc"
    for same in ("Qwen/Qwen3-8B", "/models/qwen3-8b/", "qwen3-8b-chat", cached):
        assert found.is_named((same, None)), same
    for other in ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-32B", "qwen3", ""):
        assert not found.is_named((other,)), other
    assert wanted(hub, GenerateRun(served_as="/mnt/q8")).is_named(("/mnt/q8",))
    local = Target(name="mine", source=ModelSource(path="models/Mine-7B/"))
    assert wanted(local, GenerateRun()).names == ("mine", "Mine-7B")


def test_one_of_three_servers_is_dead_and_another_dies_and_comes_back(tmp_path: Path) -> None:
    with Loopback() as gone:
        dead = gone.url
    with Loopback(delay_s=0.01) as steady, Loopback(delay_s=0.01) as shaky:
        asked = Asked(tmp_path, "sglang", [dead, steady.url, shaky.url], count=1500, concurrency=16)
        thread = threading.Thread(target=asked.go)
        thread.start()
        while shaky.requests < 100:
            time.sleep(0.005)
        port = int(shaky.url.rpartition(":")[2])
        shaky.__exit__()
        time.sleep(0.2)
        with Loopback(delay_s=0.01, port=port) as back:
            thread.join(60)
            assert asked.session.counts == {"asked": 1500} and not asked.session.failures
            assert back.requests > 0, "the server that came back was not used"
            lost = asked.http.retries["connection"]
            assert steady.requests + shaky.requests + back.requests <= 1500 + lost
        asked.require_true()


def test_all_servers_dead_for_too_long_ends_the_run(tmp_path: Path) -> None:
    with Loopback(delay_s=0.02) as server:
        asked = Asked(tmp_path, "sglang", [server.url], count=500, patience_s=0.5, concurrency=4)
        caught: list[BaseException] = []

        def go() -> None:
            try:
                asked.go()
            except DraftmillError as error:
                caught.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        while server.requests < 20:
            time.sleep(0.005)
    thread.join(20)
    assert "no server has answered" in str(caught[0])
    kept = sum(answer is not None for answer in asked.stored().values())
    assert kept >= 16, "what was answered is kept"


def test_overload_halves_what_is_in_flight(tmp_path: Path) -> None:
    with Loopback(lambda digest, attempt: "503" if attempt == 0 and int(digest, 16) % 9 == 0 else None) as server:
        asked = Asked(tmp_path, "sglang", [server.url], count=300, concurrency=64)
        asked.go()
        assert asked.http._gate.limit < 64
        asked.require_true()


def test_concurrency_grows_to_its_limit_and_stays_there(tmp_path: Path) -> None:
    with Loopback(delay_s=0.05) as server:
        Asked(tmp_path, "sglang", [server.url], count=1500, concurrency=100).go()
        assert 80 <= server.most_in_flight <= 100


def test_budgets_stop_within_what_is_in_flight_and_the_next_run_goes_on(tmp_path: Path) -> None:
    with Loopback() as server:
        for budget in ({"max_output_tokens": 500}, {"max_cost_usd": 0.03}):
            asked = Asked(tmp_path, "openai", [server.url], count=200, concurrency=8, **budget)
            session = asked.go()
            assert session.stopped and next(iter(budget)) in session.stopped
            assert 20 <= session.counts["asked"] <= 70
        before = server.requests
        last = Asked(tmp_path, "openai", [server.url], count=200)
        last.go()
        assert server.requests == 200 and last.session.counts["reused"] == before
        last.require_true()


def test_cost_is_the_servers_or_that_of_the_price_table(tmp_path: Path) -> None:
    with Loopback() as server:
        asked = Asked(tmp_path, "openai", [server.url], count=10)
        asked.go()
        assert asked.meter.cost == pytest.approx(0.010)
    wire = _wire(engine_of("openai", prices=Prices(prompt=2.0, completion=10.0)), Sampling(), (2,))
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}
    usage = {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}}
    assert wire.answer(question(0), "", {**body, **usage}).usage["cost"] == pytest.approx(0.003)


def test_the_key_is_sent_and_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    secret = "sk-very-secret-0123456789"
    engine = engine_of("openai", api_key_env="TEST_KEY")
    with pytest.raises(ConfigError, match="TEST_KEY is not set"):
        Asked(tmp_path, "openai", ["http://127.0.0.1:1"], engine=engine).go()
    monkeypatch.setenv("TEST_KEY", secret)
    with Loopback(key=secret) as server:
        Asked(tmp_path, "openai", [server.url], engine=engine).go()
        assert server.headers["Authorization"] == f"Bearer {secret}"
    with Loopback(lambda digest, attempt: "401", key=secret) as server:
        monkeypatch.setenv("TEST_KEY", secret + "x")
        (other := tmp_path / "other").mkdir()
        with pytest.raises(BuildError) as caught:
            Asked(other, "openai", [server.url], engine=engine).go()
    texts = [str(caught.value), *capfd.readouterr()]
    texts += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(secret in text for text in texts)


def test_a_provider_that_refuses_by_moderation_refuses_one_row() -> None:
    http = object.__new__(Http)
    http._key, http._answered, http._refused = None, 1, 0
    error = http._refusal(403, None, b'{"error": {"message": "requires moderation"}}', None)  # type: ignore[arg-type]
    assert getattr(error, "reason", None) == "refused"


def test_openrouter_pins_the_provider(tmp_path: Path) -> None:
    identity = Identity(model="tiny", provider=("one", "two"), quantization="fp8", reasoning="high")
    with Loopback(provider="One") as server:
        asked = Asked(tmp_path, "openai", [server.url], count=1, engine=engine_of("openai", identity=identity))
        asked.go()
        body = server.bodies[0]
        assert body["provider"] == {
            "allow_fallbacks": False,
            "require_parameters": True,
            "order": ["one", "two"],
            "only": ["one", "two"],
            "quantizations": ["fp8"],
        }
        assert body["reasoning"] == {"effort": "high"} and "tools" not in body
        answer = asked.stored()[0]
        assert answer is not None and answer.engine == "openai:One"


def test_tools_and_history_go_out_in_openai_form(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    messages = [
        {"role": "user", "content": "hi", "flag": 1},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    request = Request(key="0" * 32, limit=8, prompt_ids=[1], messages=messages, tools=tools)
    payload = _wire(engine_of("openai"), Sampling(), (2,)).payload(request, "n", "tiny")
    assert payload["tools"] == tools and "flag" not in payload["messages"][0]
    sent = payload["messages"][1]
    assert sent["content"] is None and json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"x": 1}


@pytest.fixture(autouse=True)
def no_leftover_threads() -> Iterator[None]:
    yield
    assert threading.active_count() < 12
