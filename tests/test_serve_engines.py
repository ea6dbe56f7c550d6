"""Exported drafters in real servers on a CPU: `make test-engines`.

The drafter is trained on the target's own answers to the very prompts it is then measured on, until it knows them
half by heart: accepted more often and further than an honest one, it shows faults at every place of the chain. Every
part is the project's own, from the states to the export.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from draftmill.evaluate.serve import Server, compare
from draftmill.evaluate.stage import evaluate
from draftmill.export.stage import build as export
from draftmill.target import Target, load_model, prepare, renderer
from draftmill.train import TrainRun
from draftmill.train.stage import train

pytestmark = [pytest.mark.engines, pytest.mark.timeout(2400)]

VLLM = ROOT / ".deps" / "vllm"
THREADS = len(os.sched_getaffinity(0))
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": str(THREADS),
}
FLAGS = ("--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "32", "--enforce-eager")
NEW_TOKENS, EOS = 48, 2
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
def measured(tmp_path_factory: pytest.TempPathFactory, smollm2: Target) -> Iterator[dict[str, Any]]:
    """evaluate's figures of a drafter in build/export below the working directory."""
    if not (VLLM / ".ready").exists():
        pytest.skip(f"no {VLLM}: requirements/environments.sh makes it")
    torch.set_num_threads(THREADS)
    settings = yaml.safe_load((ROOT / "conf/drafter/eagle3_small.yaml").read_text())
    settings["recipe"]["epochs"] = 10.0
    drafter = build(Drafter, settings, file="conf/drafter/eagle3_small.yaml", key="drafter")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("served"))
        patch.delenv("DRAFTMILL_KEEP", raising=False)
        make_project(talks(smollm2, PROMPTS[: SETTINGS.max_prompts]), smollm2)
        train(drafter, smollm2, 0, TrainRun(), "cpu")
        export(drafter)
        yield evaluate(SETTINGS, drafter, smollm2, 0, EvaluateRun(), "cpu")


def test_vllm_accepts_what_evaluate_measured(measured: dict[str, Any], smollm2: Target) -> None:
    """The same greedy text with and without the drafter on all prompts, and the accept length within 5 %."""
    prompts = [one.ids for one in read_prompts(Path("build/blend/heldout.parquet"), SETTINGS, seed=0)]
    server = Server(kind="vllm", python=str(VLLM / "bin/python"), target=prepare(smollm2), flags=FLAGS)
    found = compare(
        server, Path("build/export").absolute(), prompts, loads=(8,), max_new_tokens=NEW_TOKENS, environment=ENVIRONMENT
    )
    print(f"\nvLLM: {json.dumps(found.rows())}, same text {found.same_text} of {len(prompts)}")
    print(f"evaluate: {measured['accept_length']}, by place {measured['acceptance']}")
    assert len(prompts) >= 20 and found.same_text == len(prompts)
    assert measured["accept_length"] > 1.3
    assert found.drafted[0].accept_length == pytest.approx(measured["accept_length"], rel=0.05)
