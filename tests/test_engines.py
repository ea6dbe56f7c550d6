"""Real servers against the engine in process, on the embedded model: `make test-engines`.

The environments are made by requirements/environments.sh under .deps/; a server whose environment is missing
is skipped. Every server is started, used and stopped as draftmill itself does it (`run.generate.launch`), but
for `transformers serve`, which stands for any chat endpoint.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from generating import ROOT, answers, figures, metrics, write_params, write_rows

from draftmill.generate import server
from draftmill.generate.settings import Engine, Identity, Sampling
from draftmill.generate.stage import build
from draftmill.target import Renderer, Target, load_model, renderer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

DEPS = ROOT / ".deps"
NEW_TOKENS = 24
# A difference in logits that float32 kernels of two libraries may turn around.
TIE = 2e-3
SUBJECTS = (
    "rain",
    "bread",
    "rivers",
    "bees",
    "glass",
    "maps",
    "salt",
    "snow",
    "clocks",
    "bridges",
    "paper",
    "moss",
    "wind",
    "iron",
)
FORMS = (
    "Explain in two sentences what {} is good for.",
    "Write a Python function about {}.",
    "List four facts about {}.",
    "Tell a very short story about {}.",
)
PROMPTS = [form.format(subject) for subject in SUBJECTS for form in FORMS]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a server is started."""

    engine: str
    flags: tuple[str, ...] = ()
    env: dict[str, str]
    needs: Path


THREADS = len(os.sched_getaffinity(0))  # more threads than cores would spin while they wait for each other
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS)}
KINDS = {
    "vllm": Kind(
        engine="vllm",
        flags=("--max-num-seqs", "32", "--enforce-eager"),
        env={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", **OFFLINE},
        needs=DEPS / "vllm/.ready",
    ),
    "sglang": Kind(
        engine="sglang",
        flags=(
            "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
            "--disable-cuda-graph", "--disable-radix-cache",
            "--mem-fraction-static", "0.2", "--max-total-tokens", "8192",
        ),
        env={"PYTHONPATH": f"{ROOT}/tests/sglang_on_cpu:{DEPS}/sglang", **OFFLINE},
        needs=DEPS / "sglang/.ready",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("engines")
        patch.chdir(folder)
        patch.delenv("DRAFTMILL_KEEP", raising=False)
        yield folder
        server.stop()


@pytest.fixture(scope="module")
def truth(workspace: Path, smollm2: Target) -> dict[str, dict[str, Any]]:
    """The rows of the engine in process, by id."""
    torch.set_num_threads(THREADS)
    rows = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    write_rows(workspace, rows)
    write_params(workspace, smollm2, sampling=Sampling(max_new_tokens=NEW_TOKENS), threads=THREADS)
    build("demo")
    return {row["id"]: row for row in answers(workspace)}


def ask(workspace: Path, target: Target, kind: Kind, **changes: Any) -> None:
    """One build with a launched server and a store of its own; the store of the truth is put aside."""
    for path in (workspace / ".draftmill").glob("answers.sqlite*"):
        path.unlink()
    shutil.rmtree(workspace / "build/generate", ignore_errors=True)
    run = {
        "launch": True, "launch_python": str(DEPS / "vllm/bin/python"), "launch_flags": list(kind.flags),
        "launch_env": kind.env, "launch_timeout_s": 900.0, "concurrency": 16,
    }  # fmt: skip
    engine = Engine(name=kind.engine, identity=Identity(dtype="float32"))  # type: ignore[arg-type]
    sampling = changes.pop("sampling", Sampling(max_new_tokens=NEW_TOKENS))
    write_params(workspace, target, engine=engine, sampling=sampling, run=run, **changes)
    build("demo")


@pytest.mark.parametrize("name", KINDS)
def test_ids_agree_with_the_engine_in_process(
    name: str, workspace: Path, smollm2: Target, truth: dict[str, dict[str, Any]]
) -> None:
    kind = KINDS[name]
    if not kind.needs.exists():
        pytest.skip(f"no environment: {kind.needs.parent}")
    write_rows(workspace, [[{"role": "user", "content": prompt}] for prompt in PROMPTS])
    started = time.monotonic()
    ask(workspace, smollm2, kind)
    rows = answers(workspace)
    assert len(rows) == len(PROMPTS) == figures(workspace)["requests"] and not figures(workspace)["retries"]
    ties = []
    for row in rows:
        expected = truth[row["id"]]
        assert row["prompt_ids"] == expected["prompt_ids"]
        if row["output_ids"] != expected["output_ids"]:
            ties.append(gap(smollm2, row["prompt_ids"][0], expected["output_ids"][0], row["output_ids"][0]))
        assert row["turns"][0]["usage"]["prompt_tokens"] == len(row["prompt_ids"][0])
        assert row["turns"][0]["finish_reason"] == ("stop" if row["output_ids"][0][-1] == 2 else "length")
        assert "usage" not in row["turns"][0]["flags"]
    print(f"\n{name}: {len(rows) - len(ties)} of {len(rows)} equal, ties {ties}, {time.monotonic() - started:.0f} s")
    assert all(tie < TIE for tie in ties), ties


@pytest.mark.parametrize("name", KINDS)
def test_a_prompt_longer_than_the_servers_context_is_a_reject(name: str, workspace: Path, smollm2: Target) -> None:
    kind = KINDS[name]
    if not kind.needs.exists():
        pytest.skip(f"no environment: {kind.needs.parent}")
    long = "word " * 3000
    write_rows(workspace, [[{"role": "user", "content": text}] for text in ("Hello.", long, "What is rain?")])
    ask(workspace, smollm2, kind)
    assert metrics(workspace)["dropped"] == {"too_long": 1}, "the target's own limit comes first"


@pytest.mark.parametrize("name", KINDS)
def test_several_turns_tools_and_draws(name: str, workspace: Path, smollm2: Target) -> None:
    kind = KINDS[name]
    if not kind.needs.exists():
        pytest.skip(f"no environment: {kind.needs.parent}")
    tool = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]'
    talk = [{"role": role, "content": text} for role, text in (("user", "Hi."), ("assistant", "-"), ("user", "Bye."))]
    write_rows(workspace, [talk], tools=tool)
    sampling = Sampling(max_new_tokens=200, temperature=0.7, top_p=0.9, seed=1)
    ask(workspace, smollm2, kind, sampling=sampling, keep_resolved="each_user")
    (row,) = answers(workspace)
    drawn = renderer(smollm2)
    assert row["turns"][0]["position"] == 1 and "weather" in drawn.decode(row["prompt_ids"][0])


def gap(target: Target, prompt: list[int], mine: list[int], theirs: list[int]) -> float:
    """How far the logits of the two tokens are apart where the answers first differ."""
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    assert at is not None, "one answer is the beginning of the other"
    model = load_model(target, "cpu")
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + mine[:at]])).logits[0, -1]
    return float(abs(logits[mine[at]] - logits[theirs[at]]))


@pytest.fixture(scope="module")
def chat_server(workspace: Path, smollm2: Target) -> Iterator[tuple[str, str]]:
    """(URL, model name) of `transformers serve`, with the target's template in the model's folder."""
    program = DEPS / "vllm/bin/transformers"
    if not program.exists():
        pytest.skip(f"no environment: {program.parent.parent}")
    folder, source = workspace / "served", renderer(smollm2).folder.absolute()
    folder.mkdir()
    for path in source.iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).symlink_to(path)
    shutil.copy(str(smollm2.chat_template), folder / "chat_template.jinja")
    port = server._free_port()
    arguments = [str(program), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with open(workspace / "serve.log", "wb") as log:
        process = subprocess.Popen(
            [*arguments, "--dtype", "float32"], stdout=log, stderr=log, env={**os.environ, **OFFLINE}, cwd=workspace
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 300
    while not server._answers(f"{url}/health"):
        assert process.poll() is None and time.monotonic() < deadline, (workspace / "serve.log").read_text()[-2000:]
        time.sleep(1)
    yield f"{url}/v1", str(folder)
    process.terminate()
    process.wait(20)


def test_a_chat_endpoint_gives_the_same_text(
    workspace: Path, smollm2: Target, truth: dict[str, dict[str, Any]], chat_server: tuple[str, str]
) -> None:
    url, model = chat_server
    write_rows(workspace, [[{"role": "user", "content": prompt}] for prompt in PROMPTS])
    for path in (workspace / ".draftmill").glob("answers.sqlite*"):
        path.unlink()
    shutil.rmtree(workspace / "build/generate", ignore_errors=True)
    engine = Engine(name="openai", identity=Identity(model=model))
    run = {"urls": [url], "concurrency": 4}
    write_params(workspace, smollm2, engine=engine, sampling=Sampling(max_new_tokens=NEW_TOKENS), run=run)
    started = time.monotonic()
    build("demo")
    drawn = renderer(smollm2)
    ties = []
    for row in answers(workspace):
        expected = truth[row["id"]]
        if row["conversation"] != expected["conversation"]:
            ties.append(text_gap(smollm2, drawn, expected, row["conversation"][-1]["content"]))
    equal, seconds = len(PROMPTS) - len(ties), time.monotonic() - started
    print(f"\ntransformers serve: {equal} of {len(PROMPTS)} equal, ties {ties}, {seconds:.0f} s")
    assert all(tie < TIE for tie in ties), ties


def text_gap(target: Target, drawn: Renderer, expected: dict[str, Any], text: str) -> float:
    return gap(target, expected["prompt_ids"][0], expected["output_ids"][0], drawn.encode(text))
