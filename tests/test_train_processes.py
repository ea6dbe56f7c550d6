"""Two processes under torchrun train what one process trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml
from drafting import QUICK, SMALL, make_project, talks
from safetensors.torch import load_file
from test_train_dflash import SMALL as BLOCKS

from draftmill.drafters import Drafter
from draftmill.hidden_states import States
from draftmill.target import Target
from draftmill.train.stage import train

PROGRAM = """
import sys
from pathlib import Path
import torch, yaml
torch.set_num_threads(1)
from draftmill.config import build
from draftmill.drafters import Drafter
from draftmill.target import Target
from draftmill.train import TrainRun
from draftmill.train.stage import train
made = yaml.safe_load(Path("run.yaml").read_text())
drafter = build(Drafter, made["drafter"], file="run.yaml", key="drafter")
target = build(Target, made["target"], file="run.yaml", key="target")
train(drafter, target, 0, TrainRun(checkpoint_every_s=0.0, log_every=2), "cpu")
"""


@pytest.mark.parametrize("kind", ["eagle3", pytest.param("dflash", marks=pytest.mark.slow)])
def test_two_processes_equal_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Target
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    make_project(talks(tiny_target, 14, 4), tiny_target, States(for_=["eagle3"], dtype="float32"))
    chosen: Drafter = SMALL if kind == "eagle3" else BLOCKS
    drafter = replace(chosen, recipe=replace(chosen.recipe, epochs=3.0, packs_per_step=4, pack_tokens=48))
    alone = train(drafter, tiny_target, 0, QUICK, "cpu")
    expected = load_file("build/train/drafter/model.safetensors")
    Path("run.yaml").write_text(
        yaml.safe_dump(json.loads(json.dumps({"drafter": asdict(drafter), "target": asdict(tiny_target)})))
    )
    Path("program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "program.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, tensor in load_file("build/train/drafter/model.safetensors").items():
        assert torch.allclose(tensor.float(), expected[name].float(), atol=1e-5), name
    metrics = json.loads(Path("build/train/metrics/metrics.json").read_text())
    last = alone.history[-1]
    assert metrics["train"]["loss"] == pytest.approx(last["train/loss"], abs=1e-5 * abs(last["train/loss"]))
    assert metrics["heldout"]["loss"] == pytest.approx(last["heldout/loss"], rel=1e-5)
    assert metrics["tokens_seen"] == alone.tokens
