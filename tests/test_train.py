"""Training: packs, loss, training-time test, leaks, accumulation, resume, early stopping, named errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import load_target
from drafting import QUICK, SMALL, Talk, make_project, talks, write_blend
from safetensors.torch import load_file

from draftmill.drafters import Recipe
from draftmill.drafters.vocabulary import ids_of
from draftmill.errors import BuildError, ConfigError, DataError
from draftmill.target import Target
from draftmill.train import TrainRun
from draftmill.train.data import plan_packs, read_rows, shuffled
from draftmill.train.stage import train
from draftmill.train.trainer import learning_rate


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def rows_of_target(tiny_target: Target) -> list[Talk]:
    return talks(tiny_target, count=14, held_out=4)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Target, rows_of_target: list[Talk]) -> Path:
    """A working directory with a blend and its states."""
    monkeypatch.chdir(tmp_path)
    make_project(rows_of_target, tiny_target)
    return tmp_path


def test_packs_hold_whole_rows_in_order() -> None:
    lengths = np.array([5, 5, 9, 2, 30], np.int64)
    assert plan_packs(lengths, [0, 1, 2, 3, 4], 10) == [[0, 1], [2], [3], [4]]
    order = shuffled(5, 2.4, seed=3)
    assert len(order) == 12 and sorted(order[:5]) == sorted(order[5:10]) == [0, 1, 2, 3, 4]
    assert order.tolist() == shuffled(5, 2.4, seed=3).tolist() != shuffled(5, 2.4, seed=4).tolist()


def test_rows_come_back_as_written(project: Path, rows_of_target: list[Talk]) -> None:
    rows = read_rows(Path("build/blend/train.parquet"))
    assert len(rows) == 10
    assert rows.tokens(3).tolist() == rows_of_target[3].ids
    assert rows.supervised.reshape(10, -1)[:, :12].sum() == 0 and rows.supervised.sum() == 10 * 12
    supervised, seen = rows.counts(300)
    assert supervised.sum() == 120 and seen.sum() == 240


def test_learning_rate_rises_and_falls() -> None:
    recipe = Recipe(learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(recipe, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0) and rates[9] == pytest.approx(1.0)
    assert rates[-1] < 0.001 and rates[10:] == sorted(rates[10:], reverse=True)


def weights() -> dict[str, torch.Tensor]:
    return load_file("build/train/drafter/model.safetensors")


def test_whole_stage_learns_and_writes(project: Path, tiny_target: Target) -> None:
    recipe = replace(SMALL.recipe, epochs=25.0)
    progress = train(replace(SMALL, recipe=recipe), tiny_target, 0, QUICK, "cpu")
    losses = [line["train/loss"] for line in progress.history if "train/loss" in line]
    reached = [line["train/accept_length"] for line in progress.history if "train/loss" in line]
    assert losses[-1] < losses[0] and reached[-1] > reached[0] + 0.3
    facts = json.loads(Path("build/train/drafter/drafter.json").read_text())
    assert facts["architecture"]["layers"] == [2, 4, 5] and facts["steps"] == progress.step
    metrics = json.loads(Path("build/train/metrics/metrics.json").read_text())
    assert metrics["heldout"]["accept_length"] >= 1 and metrics["tokens_seen"] == progress.tokens
    curve = Path("build/train/metrics/plots/metrics/train/loss.tsv").read_text().splitlines()
    assert curve[0] == "step\tloss" and len(curve) == len(losses) + 1
    assert not (project / ".dvc").exists() and not (project / "dvc.yaml").exists()
    assert not any(Path(".draftmill/train").iterdir())  # finished: nothing to go on from


def test_head_starts_from_the_targets_rows(project: Path, tiny_target: Target) -> None:
    frozen = replace(SMALL, train_head=False, recipe=replace(SMALL.recipe, epochs=1.0))
    train(frozen, tiny_target, 0, QUICK, "cpu")
    tensors = weights()
    head = load_file(Path(str(tiny_target.source.path)) / "model.safetensors")
    table = head.get("lm_head.weight", head["model.embed_tokens.weight"])
    assert torch.equal(tensors["lm_head.weight"], table[ids_of(tensors["d2t"])])
    assert tensors["t2d"].sum() == 120


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_bfloat16_autocast_keeps_fp32_weights(kind: str, project: Path, tiny_target: Target) -> None:
    settings = SMALL if kind == "eagle3" else replace(SMALL, kind="dflash", layers=[2, 4, 5], block_size=4)
    recipe = replace(settings.recipe, epochs=1.0)
    losses = []
    for precision in ("float32", "bfloat16"):
        progress = train(replace(settings, recipe=replace(recipe, precision=precision)), tiny_target, 0, QUICK, "cpu")
        losses.append(progress.history[-1]["train/loss"])
        assert all(tensor.dtype == torch.float32 for tensor in weights().values() if tensor.is_floating_point())
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)


def test_same_seed_same_bytes_and_another_seed_others(project: Path, tiny_target: Target) -> None:
    train(SMALL, tiny_target, 0, QUICK, "cpu")
    first = Path("build/train/drafter/model.safetensors").read_bytes()
    train(SMALL, tiny_target, 0, TrainRun(checkpoint_every_s=1e9, log_every=1), "cpu")
    assert Path("build/train/drafter/model.safetensors").read_bytes() == first
    train(SMALL, tiny_target, 1, QUICK, "cpu")
    other = Path("build/train/drafter/model.safetensors").read_bytes()
    assert other != first
    train(replace(SMALL, seed=1), tiny_target, 0, QUICK, "cpu")  # the drafter's own goes before the project's
    assert Path("build/train/drafter/model.safetensors").read_bytes() == other


def test_accumulation_does_not_change_the_gradient(project: Path, tiny_target: Target) -> None:
    """Two packs of 48 tokens a step, or one of 96 with the same rows in the same order."""
    two = replace(SMALL, recipe=replace(SMALL.recipe, pack_tokens=48, packs_per_step=2, epochs=2.0))
    one = replace(SMALL, recipe=replace(SMALL.recipe, pack_tokens=96, packs_per_step=1, epochs=2.0))
    train(two, tiny_target, 0, QUICK, "cpu")
    first = weights()
    train(one, tiny_target, 0, QUICK, "cpu")
    for name, tensor in weights().items():
        assert torch.allclose(tensor.float(), first[name].float(), atol=1e-5), name


class Killed(Exception):
    """Stands for the end of the process."""


def test_resumed_run_is_the_same_bit_for_bit(
    project: Path, tiny_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(SMALL, tiny_target, 0, QUICK, "cpu")
    expected, history = weights(), Path("build/train/metrics/metrics.json").read_text()
    from draftmill.train.trainer import Trainer

    step = Trainer._step

    def dies(self: Trainer, packs: Any) -> None:
        if self.progress.step == 3:
            raise Killed
        step(self, packs)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", dies)
        with pytest.raises(Killed):
            train(SMALL, tiny_target, 0, QUICK, "cpu")
    left = list(Path(".draftmill/train").glob("*/latest.json"))
    assert json.loads(left[0].read_text())["step"] == 3
    assert not list(left[0].parent.glob(".*.part"))
    train(SMALL, tiny_target, 0, QUICK, "cpu")
    resumed = weights()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    assert Path("build/train/metrics/metrics.json").read_text() == history


def test_checkpoint_of_another_map_or_damaged_is_refused(
    project: Path, tiny_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftmill.train.trainer.Trainer._take_best", _die)
    with pytest.raises(Killed):
        train(SMALL, tiny_target, 0, QUICK, "cpu")
    folder = next(Path(".draftmill/train").iterdir())
    file = next(folder.glob("step-*.safetensors"))
    tensors = load_file(file)
    tensors["model.d2t"] = tensors["model.d2t"] + 1
    from safetensors.torch import save_file

    save_file(tensors, file)
    with pytest.raises(BuildError, match="draft vocabulary of this checkpoint"):
        train(SMALL, tiny_target, 0, QUICK, "cpu")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(BuildError, match="cannot be read") as caught:
        train(SMALL, tiny_target, 0, QUICK, "cpu")
    assert "delete" in str(caught.value)


def _die(_: object) -> None:
    raise Killed


def test_early_stopping_keeps_the_best(project: Path, tiny_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([1.2, 1.5, 1.4, 1.3, 1.9])

    def look(_: object) -> dict[str, float]:
        return {"accept_length": next(figures)}

    monkeypatch.setattr("draftmill.train.trainer.Trainer.look", look)
    recipe = replace(SMALL.recipe, epochs=50.0, heldout_every=2, patience=2)
    progress = train(replace(SMALL, recipe=recipe), tiny_target, 0, QUICK, "cpu")
    assert progress.step == 8 and progress.best == 1.5 and progress.stopped
    stopped = weights()
    recipe = replace(recipe, patience=None)
    monkeypatch.undo()
    assert stopped["fc.weight"].isfinite().all() and recipe.patience is None


def test_unsupervised_blend_stops(project: Path, tiny_target: Target, rows_of_target: list[Talk]) -> None:
    write_blend([replace(row, answers=[]) for row in rows_of_target])
    with pytest.raises(DataError, match="no supervised token"):
        train(SMALL, tiny_target, 0, QUICK, "cpu")


def test_mask_outside_its_row_stops(project: Path, tiny_target: Target, rows_of_target: list[Talk]) -> None:
    write_blend([replace(row, answers=[(20, 40)]) for row in rows_of_target])
    with pytest.raises(DataError, match="outside the row"):
        train(SMALL, tiny_target, 0, QUICK, "cpu")


def test_states_of_other_tokens_stop(project: Path, tiny_target: Target, rows_of_target: list[Talk]) -> None:
    write_blend([replace(row, ids=[*row.ids[:-1], (row.ids[-1] + 1) % 250]) for row in rows_of_target])
    with pytest.raises(DataError, match="states of other tokens"):
        train(SMALL, tiny_target, 0, QUICK, "cpu")


def test_states_of_another_target_stop(project: Path, tiny_target: Target, tmp_path_factory: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTMILL_KEEP", str(tmp_path_factory.mktemp("other")))
        other = load_target("tiny", source={"random": {"seed": 5}})
        with pytest.raises(DataError):
            train(SMALL, other, 0, QUICK, "cpu")


def test_truncated_shard_stops(project: Path, tiny_target: Target) -> None:
    shard = next(Path("build/hidden_states/a").glob("shard-*.safetensors"))
    content = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(content[:-100])
    with pytest.raises(DataError, match="damaged") as caught:
        train(SMALL, tiny_target, 0, QUICK, "cpu")
    assert "hidden_states@a" in str(caught.value)


def test_packs_must_share_out_over_processes(tiny_target: Target) -> None:
    from draftmill.train.processes import Group
    from draftmill.train.trainer import Trainer

    with pytest.raises(ConfigError, match="share out"):
        Trainer(  # type: ignore[arg-type]
            objective=None,
            recipe=replace(SMALL.recipe, packs_per_step=3),
            run=QUICK,
            group=Group(rank=0, world=2),
            device=torch.device("cpu"),
            folder=Path(),
            train=None,
            heldout=None,
            record=lambda line: None,
        )
