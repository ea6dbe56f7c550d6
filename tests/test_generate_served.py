"""The whole stage against a server: kills, interrupts, several turns, tools, launched servers, the command line."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from generating import answers, figures, metrics, questions, stage, write_params, write_rows
from loopback import Loopback, prompt_digest
from typer.testing import CliRunner

from draftmill.cli import application
from draftmill.errors import BuildError, ConfigError
from draftmill.generate import server
from draftmill.generate.dialogue import Dialogue
from draftmill.generate.job import Job, settings
from draftmill.generate.settings import Engine, Identity, Policy, Sampling
from draftmill.generate.stage import build
from draftmill.generate.talk import Talk
from draftmill.target import Target

EOS = 258
SGLANG = Engine(name="sglang")
OPENAI = Engine(name="openai", identity=Identity(model="tiny"))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAFTMILL_KEEP", raising=False)
    return tmp_path


def serve(workspace: Path, target: Target, url: str, engine: Engine = SGLANG, **changes: Any) -> None:
    run = {"urls": [url], "concurrency": 16, "backoff_s": 0.01} | changes.pop("run", {})
    sampling = changes.pop("sampling", Sampling(max_new_tokens=64))
    write_params(workspace, target, engine=engine, run=run, sampling=sampling, **changes)


def digests_by_key(workspace: Path) -> dict[str, str]:
    """Store key of each row's question -> what the server calls its prompt."""
    chosen = settings()
    job, talk = Job("demo", chosen), Talk(chosen)
    found = {}
    for _, row in job.rows.read():
        request = talk.prompter.request(Dialogue(row.conversation, None, "first_user"))
        assert request is not None
        found[request.key] = prompt_digest({"input_ids": request.prompt_ids})
    return found


def stored_keys(workspace: Path) -> set[str]:
    path = workspace / ".draftmill/answers.sqlite"
    if not path.exists():
        return set()
    db = sqlite3.connect(path)
    try:
        return {key.hex() for (key,) in db.execute("SELECT key FROM answers")}
    except sqlite3.OperationalError:
        return set()
    finally:
        db.close()


FORKS = """
import os, sys
from draftmill.generate.stage import build
from draftmill.target import renderer
import aiohttp, sqlite3
for line in sys.stdin:
    child = os.fork()
    if not child:
        build("demo")
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Forks:
    """Processes that run the stage and start at once: forked from one that has everything imported."""

    def __init__(self, workspace: Path) -> None:
        arguments = [sys.executable, "-P", "-c", FORKS]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._parent = subprocess.Popen(arguments, cwd=workspace, stdin=pipe, stdout=pipe, stderr=null, text=True)

    def child(self) -> int:
        """The process id of a new one."""
        assert self._parent.stdin is not None
        self._parent.stdin.write("\n")
        self._parent.stdin.flush()
        return int(self._line())

    def alive(self, child: int) -> bool:
        """Whether it is still at work."""
        return bool(server.born(child))

    def kill(self, child: int) -> None:
        """kill -9, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        assert self._line() == "gone"

    def _line(self) -> str:
        assert self._parent.stdout is not None
        while (line := self._parent.stdout.readline().strip()) != "gone" and not line.isdigit():
            assert line or self._parent.poll() is None
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.communicate("")


@pytest.mark.parametrize(
    ("prompts", "kills", "life_s"),
    [(2000, 20, 0.4), pytest.param(5000, 200, 2.5, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_kills_lose_nothing_and_ask_nothing_twice(
    prompts: int, kills: int, life_s: float, workspace: Path, tiny_target: Target
) -> None:
    """The server is as slow as it takes for prompts to be left at the last kill.

    Answers are committed by 64 or when a second old: with 25 prompts a kill, lives must be longer than that second.
    """
    draw = random.Random(kills)
    write_rows(workspace, questions(prompts))
    with Forks(workspace) as forks, Loopback(eos=EOS, delay_s=16 / (prompts / kills) * life_s / 2) as loopback:
        serve(workspace, tiny_target, loopback.url)
        digests = digests_by_key(workspace)
        assert len(digests) == prompts
        known: dict[str, int] = {}
        killed = 0
        for _ in range(kills):
            before, child = loopback.requests, forks.child()
            while loopback.requests == before and forks.alive(child):
                time.sleep(0.002)
            time.sleep(draw.uniform(0, life_s))
            killed += forks.alive(child)
            forks.kill(child)
            for key in stored_keys(workspace) - known.keys():
                known[key] = loopback.asked[digests[key]]
        loopback._delay_s = 0.0
        assert killed >= kills * 0.9 and kills < len(known) < prompts
        build("demo")
        assert figures(workspace)["reused"] == len(known) and figures(workspace)["asked"] == prompts - len(known)
        assert all(loopback.asked[digests[key]] == times for key, times in known.items())
        disturbed = (workspace / "build/generate/demo/answers.parquet").read_bytes()
        (workspace / ".draftmill/answers.sqlite").unlink()
        (workspace / "build/generate/demo/answers.parquet").unlink()
        build("demo")
        assert (workspace / "build/generate/demo/answers.parquet").read_bytes() == disturbed
    assert len(answers(workspace)) == prompts


def test_an_interrupt_finishes_what_is_in_flight_and_exits_130(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(3000))
    with Loopback(eos=EOS, delay_s=0.05) as loopback:
        serve(workspace, tiny_target, loopback.url)
        running = stage(workspace)
        while loopback.requests < 100:
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=15)
        assert running.returncode == 130 and "interrupted" in output and "Traceback" not in output
        assert len(stored_keys(workspace)) == loopback.requests < 3000


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait_for_the_engine_in_process(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(200))
    write_params(workspace, tiny_target, sampling=Sampling(max_new_tokens=3000), run={"batch_size": 2})
    running = stage(workspace)
    assert running.stdout is not None and "loading tiny" in running.stdout.readline()
    time.sleep(3)
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        time.sleep(0.3)
    interrupted = time.monotonic()
    output, _ = running.communicate(timeout=30)
    assert running.returncode == 130 and "Traceback" not in output
    assert time.monotonic() - interrupted < 25  # the rest would take minutes


def test_several_turns_with_the_targets_own_answers(workspace: Path, tiny_target: Target) -> None:
    talk = [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(("user", "assistant") * 3)]
    write_rows(workspace, [talk] * 2)
    with Loopback(eos=EOS) as loopback:
        serve(workspace, tiny_target, loopback.url, keep_resolved="each_user")
        build("demo")
        assert loopback.requests == 3, "equal conversations are held once"
    (first, second) = answers(workspace)
    assert first["conversation"] == second["conversation"]
    assert [turn["position"] for turn in first["turns"]] == [1, 3, 5] and len(first["output_ids"]) == 3
    assert all(message["content"] != talk[i]["content"] for i, message in enumerate(first["conversation"]) if i % 2)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["x"]}}}
CALL = {"id": "mine", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def test_tools_through_a_chat_endpoint_with_replay_and_validation(workspace: Path, tiny_target: Target) -> None:
    recorded = [
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{**CALL, "id": "old", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "old"},
        {"role": "assistant", "content": "theirs"},
    ]

    def chat(body: dict[str, Any]) -> dict[str, Any]:
        assert body["tools"] == [TOOL]
        said = body["messages"][-1]
        if said["role"] == "tool":
            assert said["tool_call_id"] == "mine" and body["messages"][-2]["tool_calls"][0]["id"] == "mine"
            return {"role": "assistant", "content": "it is 42", "reasoning": "easy"}
        bad = {"name": "f", "arguments": "{}"}
        call = CALL if said["content"] == "one" else {**CALL, "function": bad}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    other = [{"role": "user", "content": "two"}]
    write_rows(workspace, [recorded, other], tools=json.dumps([TOOL]))
    with Loopback(chat=chat, longest=30) as loopback:
        serve(
            workspace,
            tiny_target,
            loopback.url,
            OPENAI,
            keep_resolved="each_user",
            sampling=Sampling(max_new_tokens=64),
        )
        build("demo")
    first, second = answers(workspace)
    assert first["conversation"][-1] == {"role": "assistant", "content": "it is 42", "reasoning": "easy"}
    assert first["conversation"][2] == {"role": "tool", "content": "42", "tool_call_id": "mine"}
    assert first["prompt_ids"] is None and first["output_ids"] is None
    assert "tool_calls" in second["turns"][0]["flags"] and "tool_calls" not in first["turns"][0]["flags"]
    with Loopback(chat=chat, longest=30) as loopback:
        sampling = Sampling(max_new_tokens=64, policy=Policy(tool_calls="drop"))
        serve(workspace, tiny_target, loopback.url, OPENAI, keep_resolved="each_user", sampling=sampling)
        build("demo")
        assert loopback.requests == 0, "a policy changes no question"
    assert metrics(workspace)["dropped"] == {"tool_calls": 1}


def test_a_row_that_the_server_refuses_is_a_counted_reject(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(50))
    with Loopback(eos=EOS) as loopback:
        serve(workspace, tiny_target, loopback.url)
        bad = sorted(digests_by_key(workspace).values())[:2]
        loopback._faults = lambda digest, attempt: "400" if digest in bad else None
        build("demo")
    found = metrics(workspace)
    assert found["dropped"] == {"refused": 2} and found["taken"] == 48
    rejects = (workspace / "build/generate/demo/rejects.jsonl").read_text()
    assert rejects.count("told to say 400") == 2


def test_too_many_failures_stop_the_build_and_a_budget_says_what_to_do(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(60))
    with Loopback(lambda digest, attempt: "500" if int(digest, 16) % 2 else None, eos=EOS) as loopback:
        serve(workspace, tiny_target, loopback.url, run={"attempts": 2})
        with pytest.raises(BuildError, match=r"of 60 rows got no answer(.|\n)*http_500(.|\n)*run again"):
            build("demo")
        loopback._faults = lambda digest, attempt: None
        serve(workspace, tiny_target, loopback.url, run={"max_output_tokens": 100, "concurrency": 4})
        with pytest.raises(BuildError, match=r"max_output_tokens(.|\n)*rows are still to be asked(.|\n)*run again"):
            build("demo")
        serve(workspace, tiny_target, loopback.url)
        build("demo")
    assert metrics(workspace)["dropped"] == {}


def test_with_all_answers_known_no_server_and_no_key_is_needed(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(5))
    with Loopback(eos=EOS) as loopback:
        serve(workspace, tiny_target, loopback.url)
        build("demo")
    write_params(workspace, tiny_target, engine=Engine(name="sglang", api_key_env="NOT_SET"))
    build("demo")
    assert figures(workspace)["asked"] == 0 and figures(workspace)["requests"] == 0


def test_a_misconfigured_engine_is_one_clear_error(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(3))
    write_params(workspace, tiny_target, engine=SGLANG)
    with pytest.raises(ConfigError, match=r"no server for engine 'sglang'(.|\n)*run.generate.launch: true"):
        build("demo")


FAKE = """
import sys
sys.path.insert(0, {tests!r})
from loopback import Loopback
from aiohttp import web
import time
port = int(sys.argv[sys.argv.index("--port") + 1])
with Loopback(port=port, eos=258) as server:
    time.sleep(600)
"""


def test_a_launched_server_is_reused_and_stopped(
    workspace: Path, tiny_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = workspace / "fake_server.py"
    fake.write_text(FAKE.format(tests=str(Path(__file__).parent)))

    def command(target: Target, engine: Engine, run: Any, port: int) -> list[str]:
        return [sys.executable, str(fake), "--port", str(port), *run.launch_flags]

    monkeypatch.setattr(server, "command", command)
    write_rows(workspace, questions(5), dataset="one")
    write_rows(workspace, questions(9), dataset="two")
    shell = CliRunner()

    def launch(*flags: str) -> None:
        run = {"launch": True, "launch_flags": list(flags), "launch_timeout_s": 30.0, "idle_timeout_s": 30.0}
        write_params(
            workspace,
            tiny_target,
            engine=SGLANG,
            run=run,
            datasets=["one", "two"],
            sampling=Sampling(max_new_tokens=64),
        )

    assert "no server" in shell.invoke(application(), ["server", "status"]).output
    launch()
    build("one")
    first = server.current()
    assert first is not None and first.url in shell.invoke(application(), ["server", "status"]).output
    build("two")
    assert server.current() == first, "the next dataset uses the same server"
    (workspace / ".draftmill/answers.sqlite").unlink()
    (workspace / "build/generate/one/answers.parquet").unlink()
    launch("--other")
    build("one")
    second = server.current()
    assert second is not None and second != first and server.born(first.supervisor) != first.born
    assert "stopped" in shell.invoke(application(), ["server", "stop"]).output
    assert server.current() is None and not server.lease_path().exists()
    assert "no server was running" in shell.invoke(application(), ["server", "stop"]).output


def test_a_server_that_does_not_come_up_is_an_error_with_its_log(
    workspace: Path, tiny_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "command", lambda *_: [sys.executable, "-c", "raise SystemExit('out of memory')"])
    write_rows(workspace, questions(1))
    write_params(workspace, tiny_target, engine=SGLANG, run={"launch": True, "launch_timeout_s": 30.0})
    with pytest.raises(BuildError, match=r"ended before it was up(.|\n)*out of memory"):
        build("demo")


def test_an_idle_server_is_stopped(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftmill.generate import supervise

    lease = workspace / "lease.json"
    lease.write_text("{}")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    started = time.monotonic()
    supervise.main(lease, workspace / "log", 0.5, [sys.executable, "-c", "import time; time.sleep(60)"])
    assert 0.4 < time.monotonic() - started < 10 and not lease.exists()


def test_the_audit_command(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(4))
    with Loopback(eos=EOS) as loopback:
        serve(workspace, tiny_target, loopback.url)
        build("demo")
    result = CliRunner().invoke(application(), ["audit", "demo"])
    # The loopback server's text is not that of its ids.
    assert result.exit_code == 1 and "text differs from ids: 4" in result.output
