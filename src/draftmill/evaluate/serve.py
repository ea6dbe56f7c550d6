"""The exported drafter in a real server: the same prompts with and without it, at several loads.

An accept length alone says nothing about speed: the server's own tokens per second, with the drafter and
without, is what a user gets. The server's accept length stands beside the one that evaluate measured, and is
counted alike: tokens of the target's passes over passes, without each answer's first token, which the prompt gave.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from draftmill.config import params, section
from draftmill.console import say
from draftmill.errors import BuildError
from draftmill.evaluate import Evaluate
from draftmill.evaluate.prompts import read_prompts
from draftmill.files import write_json
from draftmill.workspace import BUILD, keep

Kind = Literal["vllm", "sglang"]
POLL_S = 1.0
PROMETHEUS = re.compile(r"^(vllm:spec_decode_num_(?:drafts|accepted_tokens)_total)\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server to start: its kind, the Python that has it, the target's folder, and further flags."""

    kind: Kind
    python: str
    target: Path
    port: int = 8350
    draft_tokens: int = 3
    flags: tuple[str, ...] = ()
    start_timeout_s: float = 900.0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def command(self, drafter: Path | None, algorithm: str = "eagle3") -> list[str]:
        """The command line, with a drafter or without; `algorithm` is eagle3 or dflash."""
        if self.kind == "vllm":
            start = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.target)]
            own = {"method": algorithm, "model": str(drafter), "num_speculative_tokens": self.draft_tokens}
            spec = ["--speculative-config", json.dumps(own)]
        else:
            start = [self.python, "-m", "sglang.launch_server", "--model-path", str(self.target)]
            # The value EAGLE would pass the states of one layer to an EAGLE-3 drafter, without a word.
            spec = ["--speculative-algorithm", algorithm.upper(), "--speculative-draft-model-path", str(drafter)]
            if algorithm == "eagle3":
                spec += ["--speculative-num-steps", str(self.draft_tokens), "--speculative-eagle-topk", "1"]
                spec += ["--speculative-num-draft-tokens", str(self.draft_tokens + 1)]
        return [*start, "--host", "127.0.0.1", "--port", str(self.port), *self.flags, *(spec if drafter else [])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One pass over the prompts: token ids of each answer, tokens and seconds over all, the server's accept length."""

    in_flight: int
    answers: list[list[int]]
    tokens: int
    seconds: float
    accept_length: float | None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@contextmanager
def running(server: Server, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """The server, from when it answers to its end.

    Raises BuildError with the end of its log if it does not start, and where another server would be measured.
    """
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", server.port)) == 0:
            raise BuildError(
                f"port {server.port} is taken by another program", fix="bench-serve --port with a free one"
            )
    log = keep("serve") / f"{server.kind}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | dict(environment), start_new_session=True
        )
    try:
        _wait(server, process, log)
        yield
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, how)
                _ended(process, 20.0)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + server.start_timeout_s
    while time.monotonic() < until:
        if process.poll() is not None:
            end = " | ".join(log.read_text(errors="replace").splitlines()[-5:])
            raise BuildError(f"{server.kind} ended while starting", file=log, found=end[-1500:])
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=POLL_S):
                return
        except OSError:
            time.sleep(POLL_S)
    raise BuildError(f"{server.kind} did not answer in {server.start_timeout_s:.0f} s", file=log)


def measure(server: Server, prompts: Sequence[Sequence[int]], in_flight: int, max_new_tokens: int) -> Served:
    """Greedy answers to all prompts, `in_flight` at a time."""
    before = _counters(server)
    began = time.monotonic()
    answers = asyncio.run(_ask_all(server, prompts, in_flight, max_new_tokens))
    seconds = time.monotonic() - began
    tokens = sum(len(ids) for ids, _ in answers)
    passes = sum(count for _, count in answers)
    accept = (tokens - len(answers)) / passes if passes else _accepted(before, _counters(server))
    return Served(
        in_flight=in_flight, answers=[ids for ids, _ in answers], tokens=tokens, seconds=seconds, accept_length=accept
    )


async def _ask_all(
    server: Server, prompts: Sequence[Sequence[int]], in_flight: int, limit: int
) -> list[tuple[list[int], int]]:
    import aiohttp

    gate = asyncio.Semaphore(in_flight)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def ask(prompt: Sequence[int]) -> tuple[list[int], int]:
            path, body = _request(server, prompt, limit)
            async with gate, session.post(server.url + path, json=body) as response:
                if response.status != 200:
                    raise BuildError(f"{server.kind} refused a prompt: {(await response.text())[:300]}")
                return _answer(server, await response.json())

        return await asyncio.gather(*(ask(prompt) for prompt in prompts))


def _request(server: Server, prompt: Sequence[int], limit: int) -> tuple[str, dict[str, Any]]:
    if server.kind == "vllm":
        body = {"model": str(server.target), "prompt": list(prompt), "max_tokens": limit, "temperature": 0.0}
        return "/v1/completions", body | {"return_token_ids": True}
    own = {"temperature": 0.0, "max_new_tokens": limit, "skip_special_tokens": False, "no_stop_trim": True}
    return "/generate", {"input_ids": list(prompt), "sampling_params": own}


def _answer(server: Server, reply: dict[str, Any]) -> tuple[list[int], int]:
    """Token ids, and the target's passes that they took (0: the server does not say)."""
    if server.kind == "vllm":
        return list(reply["choices"][0]["token_ids"]), 0
    return list(reply["output_ids"]), int(reply["meta_info"].get("spec_verify_ct") or 0)


def _counters(server: Server) -> dict[str, float]:
    """vLLM's counters of drafts and accepted tokens; empty without speculative decoding."""
    if server.kind != "vllm":
        return {}
    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        found = PROMETHEUS.findall(reply.read().decode())
    return {name: float(value) for name, value in found}


def _accepted(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """1 + accepted / drafts between two readings."""
    drafts, accepted = (
        after.get(f"vllm:spec_decode_num_{name}_total", 0.0) - before.get(f"vllm:spec_decode_num_{name}_total", 0.0)
        for name in ("drafts", "accepted_tokens")
    )
    return 1 + accepted / drafts if drafts else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Plain and drafted passes at the same loads; `same_text`: prompts whose greedy answers are equal."""

    plain: list[Served]
    drafted: list[Served]

    @property
    def same_text(self) -> int:
        """Prompts with the same answer in the first passes."""
        pairs = zip(self.plain[0].answers, self.drafted[0].answers, strict=True)
        return sum(one == other for one, other in pairs)

    def rows(self) -> list[dict[str, Any]]:
        """One row a load, for a table or a JSON file."""
        return [
            {
                "in_flight": plain.in_flight,
                "plain_tokens_per_s": round(plain.rate, 1),
                "drafted_tokens_per_s": round(drafted.rate, 1),
                "speedup": round(drafted.rate / plain.rate, 3) if plain.rate else None,
                "accept_length": None if drafted.accept_length is None else round(drafted.accept_length, 4),
            }
            for plain, drafted in zip(self.plain, self.drafted, strict=True)
        ]


def compare(
    server: Server,
    drafter: Path,
    prompts: Sequence[Sequence[int]],
    *,
    loads: Sequence[int] = (1, 8, 32),
    max_new_tokens: int = 128,
    environment: Mapping[str, str] | None = None,
) -> Comparison:
    """Start the server without and then with the drafter, and measure both at every load."""
    algorithm, _ = kind_of(drafter)
    passes: list[list[Served]] = []
    for folder in (None, drafter):
        with running(server, server.command(folder, algorithm), environment or {}):
            measure(server, prompts[:1], 1, 4)  # the first request pays for what is made on first use
            passes.append([measure(server, prompts, load, max_new_tokens) for load in loads])
    return Comparison(plain=passes[0], drafted=passes[1])


def kind_of(drafter: Path) -> tuple[str, int | None]:
    """(algorithm as servers call it, drafts a step where the drafter says how many) of an exported drafter."""
    config = json.loads((drafter / "config.json").read_text(encoding="utf-8"))
    return ("dflash", config["block_size"] - 1) if "dflash_config" in config else ("eagle3", None)


def bench(
    server: Server,
    drafter: Path,
    *,
    loads: Sequence[int],
    max_new_tokens: int | None = None,
    draft_tokens: int | None = None,
    json_file: Path | None = None,
) -> None:
    """Compare on the held-out prompts of the build and print the figures, ours beside them.

    Answers are as long as evaluate's and as many tokens are drafted, if nothing else is said.
    """
    settings = section("evaluate", Evaluate)
    prompts = read_prompts(BUILD / "blend" / "heldout.parquet", settings, params()["seed"])
    drafting = replace(server, draft_tokens=draft_tokens or kind_of(drafter)[1] or settings.draft_tokens)
    limit = max_new_tokens or settings.max_new_tokens
    found = compare(drafting, drafter, [one.ids for one in prompts], loads=loads, max_new_tokens=limit)
    for row in found.rows():
        say("  ".join(f"{name} {value}" for name, value in row.items()))
    say(f"same greedy text with and without the drafter: {found.same_text} of {len(prompts)} prompts")
    measured = BUILD / "evaluate" / "metrics.json"
    ours = json.loads(measured.read_text(encoding="utf-8"))["accept_length"] if measured.exists() else None
    if ours is not None:
        say(f"accept length that evaluate measured: {ours}")
    if json_file is not None:
        write_json(json_file, {"loads": found.rows(), "same_text": found.same_text, "evaluate": ours})
