"""Exported drafters in real servers on a CPU: `make test-engines`.

Each drafter is trained on the target's own answers to the very prompts it is then measured on, until it knows them
half by heart: accepted more often and further than an honest one, it shows faults at every place of the chain. Every
part is the project's own, from the states to the export.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from conftest import ROOT
from drafting import Talk, make_project
from test_engines import PROMPTS

from draftmill.config import build
from draftmill.drafters import Drafter
from draftmill.evaluate import Evaluate, EvaluateRun
from draftmill.evaluate.prompts import read_prompts
from draftmill.evaluate.serve import Comparison, Served, Server, kind_of, measure, running
from draftmill.evaluate.stage import evaluate
from draftmill.export.stage import build as export
from draftmill.generate.server import _free_port as free_port
from draftmill.hidden_states import States
from draftmill.target import Target, load_model, prepare, renderer
from draftmill.train import TrainRun
from draftmill.train.stage import train

pytestmark = [pytest.mark.engines, pytest.mark.timeout(2400)]

DEPS = ROOT / ".deps"
PYTHON = DEPS / "vllm/bin/python"
THREADS = len(os.sched_getaffinity(0))
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS)}
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", **OFFLINE}
SGLANG = {
    "PYTHONPATH": f"{ROOT}/tests/sglang_on_cpu:{DEPS}/sglang",
    "TRITON_INTERPRET": "1",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    **OFFLINE,
}
SGLANG_FLAGS = (
    "--device", "cpu", "--dtype", "float32", "--attention-backend", "triton", "--sampling-backend", "pytorch",
    "--disable-cuda-graph", "--disable-radix-cache", "--mem-fraction-static", "0.2", "--max-total-tokens", "8192",
    "--context-length", "2048", "--skip-server-warmup", "--watchdog-timeout", "3600",
)  # fmt: skip
FLAGS = ("--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "32", "--enforce-eager")
NEW_TOKENS, FEW, EOS, LOAD, EPOCHS = 48, 10, 2, 8, 16.0
SETTINGS = Evaluate(max_prompts=24, plain_prompts=1, max_new_tokens=NEW_TOKENS)


def talks(target: Target, prompts: list[str]) -> list[Talk]:
    """Each prompt with the target's greedy answer, once to train on and once held out."""
    asked = [renderer(target).prompt_ids([{"role": "user", "content": text}], None) for text in prompts]
    model, longest = load_model(target, "cpu"), max(map(len, asked))
    padded = torch.tensor([[EOS] * (longest - len(ids)) + ids for ids in asked])
    seen = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in asked])
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": EOS}
    with torch.inference_mode():
        found = model.generate(input_ids=padded, attention_mask=seen, **options)[:, longest:].tolist()
    rows = []
    for number, (prompt, answer) in enumerate(zip(asked, found, strict=True)):
        ids = prompt + (answer[: answer.index(EOS) + 1] if EOS in answer else answer)
        for name in ("seen", "held"):
            span = (len(prompt), len(ids))
            rows.append(Talk(dataset=name, id=f"r{number:02d}", ids=ids, answers=[span], held_out=name == "held"))
    return rows


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, smollm2: Target) -> Iterator[None]:
    """A working directory with states and a blend."""
    if not (DEPS / "vllm/.ready").exists():
        pytest.skip("no .deps/vllm: requirements/environments.sh makes it")
    torch.set_num_threads(THREADS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("served"))
        patch.delenv("DRAFTMILL_KEEP", raising=False)
        states = States(for_=["eagle3", "dflash"], dtype="float32")
        make_project(talks(smollm2, PROMPTS[: SETTINGS.max_prompts]), smollm2, states)
        yield


@pytest.fixture(scope="module")
def vllm(smollm2: Target) -> Server:
    return Server(kind="vllm", python=str(PYTHON), target=prepare(smollm2), port=free_port(), flags=FLAGS)


@pytest.fixture(scope="module")
def prompts(project: None) -> list[list[int]]:
    return [one.ids for one in read_prompts(Path("build/blend/heldout.parquet"), SETTINGS, seed=0)]


@pytest.fixture(scope="module")
def plain(vllm: Server, prompts: list[list[int]]) -> Served:
    """The answers of vLLM without a drafter."""
    with running(vllm, vllm.command(None), ENVIRONMENT):
        return measure(vllm, prompts, LOAD, NEW_TOKENS)


@pytest.fixture(scope="module")
def drafters(project: None, smollm2: Target) -> Callable[[str], tuple[Path, dict[str, Any]]]:
    """Kind -> a drafter's exported folder, and what evaluate measured; trained when it is first asked for."""

    @cache
    def trained(kind: str) -> tuple[Path, dict[str, Any]]:
        file = ROOT / f"conf/drafter/{kind}_small.yaml"
        settings = yaml.safe_load(file.read_text())
        settings["recipe"]["epochs"] = EPOCHS
        drafter = build(Drafter, settings, file=str(file), key="drafter")
        train(drafter, smollm2, 0, TrainRun(), "cpu")
        export(drafter)
        figures = evaluate(SETTINGS, drafter, smollm2, 0, EvaluateRun(), "cpu")
        examples = Path("build/evaluate/examples.jsonl").read_text().splitlines()
        figures["steps"] = [json.loads(line)["steps"] for line in examples]
        return Path(shutil.copytree("build/export", kind)).absolute(), figures

    return trained


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_vllm_accepts_what_evaluate_measured(
    kind: str, drafters: Any, vllm: Server, prompts: list[list[int]], plain: Served
) -> None:
    """The same greedy text with and without the drafter on all prompts, and the accept length within 5 %."""
    folder, ours = drafters(kind)
    server = replace(vllm, draft_tokens=kind_of(folder)[1] or SETTINGS.draft_tokens)
    with running(server, server.command(folder, kind), ENVIRONMENT):
        drafted = measure(server, prompts, LOAD, NEW_TOKENS)
    found = Comparison(plain=[plain], drafted=[drafted])
    print(f"\n{kind}: vLLM {found.rows()}, same text {found.same_text} of {len(prompts)}")
    print(f"{kind}: evaluate {ours['accept_length']}, by place {ours['acceptance']}")
    assert len(prompts) >= 20 and found.same_text == len(prompts)
    assert drafted.accept_length is not None and drafted.accept_length == pytest.approx(ours["accept_length"], rel=0.05)
    # The drafts alone: beside a weak drafter's 1.05, one that is read wrongly (1.00) would pass for equal.
    assert 0 < ours["accept_length"] - 1 == pytest.approx(drafted.accept_length - 1, rel=0.3)


def test_sglang_takes_as_many_steps_as_evaluate(drafters: Any, prompts: list[list[int]], smollm2: Target) -> None:
    """One prompt and a few tokens: a step in Triton's interpreter takes many seconds."""
    if not (DEPS / "sglang/.ready").exists():
        pytest.skip("no .deps/sglang: requirements/environments.sh makes it")
    folder, ours = drafters("eagle3")
    server = Server(kind="sglang", python=str(PYTHON), target=prepare(smollm2), port=free_port(), flags=SGLANG_FLAGS)
    with running(server, server.command(folder), SGLANG):
        served = measure(server, prompts[:1], 1, FEW)
    (row,) = pq.read_table("build/blend/heldout.parquet", columns=["input_ids"]).slice(0, 1).to_pylist()
    text = [*prompts[0], *served.answers[0]]
    steps = ours["steps"][0]
    passes = next(count for count in range(1, len(steps)) if 1 + sum(steps[:count]) >= FEW)
    print(f"\nSGLang: {FEW} tokens in {passes} steps, {served.seconds:.0f} s")
    assert text == row["input_ids"][: len(text)] and max(steps[:passes]) > 1
    assert served.accept_length == (FEW - 1) / passes
