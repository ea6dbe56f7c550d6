"""Training: packs, loss, training-time test, leaks, accumulation, resume, early stopping, named errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import load_target
from drafting import Talk, make_project, talks, write_blend
from safetensors.torch import load_file

from draftmill.drafters import Drafter, Recipe
from draftmill.drafters.architecture import resolve
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends
from draftmill.drafters.initialize import random_weights
from draftmill.drafters.vocabulary import ids_of, membership, offsets
from draftmill.errors import BuildError, ConfigError, DataError
from draftmill.target import Target, shape
from draftmill.train import TrainRun
from draftmill.train.data import Pack, Rows, load_pack, plan_packs, read_rows, shuffled
from draftmill.train.eagle3 import Eagle3Objective, places, unroll
from draftmill.train.loss import SoftCrossEntropy, best_tokens
from draftmill.train.stage import train
from draftmill.train.stats import Stats
from draftmill.train.trainer import learning_rate

SMALL = Drafter(
    kind="eagle3",
    draft_vocab_size=120,
    ttt_steps=3,
    recipe=Recipe(epochs=2.0, learning_rate=1e-3, pack_tokens=64, packs_per_step=2, heldout_every=3),
)
QUICK = TrainRun(checkpoint_every_s=0.0, log_every=2)


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


def random_model(target: Target, vocab: int = 120) -> tuple[Eagle3, Ends]:
    """A drafter of random weights and random ends."""
    arch = resolve(replace(SMALL, draft_vocab_size=vocab), shape(target))
    model = Eagle3(arch)
    random_weights(model, 1)
    ids = torch.arange(0, 2 * vocab, 2)
    with torch.no_grad():
        model.d2t.copy_(offsets(ids))
        model.t2d.copy_(membership(ids, arch.vocab_size))
    torch.manual_seed(2)
    table = torch.randn(arch.vocab_size, arch.hidden_size)
    return model, Ends(embedding=table, norm=torch.ones(arch.hidden_size), head=torch.randn_like(table), eps=1e-5)


def random_pack(model: Eagle3, lengths: list[int], answers: list[tuple[int, int]], seed: int = 0) -> Pack:
    """Rows of random tokens and states, supervised in `answers`."""
    generator = torch.Generator().manual_seed(seed)
    starts = np.cumsum([0, *lengths]).astype(np.int64)
    total, size = int(starts[-1]), model.arch.hidden_size
    ids = torch.randint(0, model.arch.vocab_size, (total,), generator=generator)
    aux = torch.randn(total, 3 * size, generator=generator)
    last = torch.randn(total, size, generator=generator)
    mask = np.zeros(total, np.bool_)
    for start, (a, b) in zip(starts, answers, strict=False):
        mask[start + a : start + b] = True
    rows = Rows(
        name="train",
        ids=ids.numpy().astype(np.int32),
        starts=starts,
        supervised=mask,
        dataset=["d"] * len(lengths),
        shard=[None] * len(lengths),
        offset=[None] * len(lengths),
    )
    return load_pack(rows, range(len(lengths)), lambda r, m: [(aux[s:e], last[s:e]) for s, e in _spans(r, m)])


def _spans(rows: Rows, members: Any) -> list[tuple[int, int]]:
    return [(int(rows.starts[row]), int(rows.starts[row + 1])) for row in members]


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


def test_soft_cross_entropy_equals_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    students = torch.randn(3, 7, 8, requires_grad=True)
    head = torch.randn(11, 8, requires_grad=True)
    teacher, teacher_head, weights = torch.randn(7, 8), torch.randn(11, 8), torch.rand(3, 7)
    logs = (students @ head.T).log_softmax(-1)
    wanted = (teacher @ teacher_head.T).softmax(-1)
    expected = -(weights[..., None] * wanted * logs).sum()
    grads = torch.autograd.grad(expected, (students, head))
    for size in (1 << 20, 100):  # in one chunk, and in several
        monkeypatch.setattr("draftmill.train.loss.CHUNK_VALUES", size)
        loss, best = SoftCrossEntropy.apply(students, head, teacher, teacher_head, weights)
        assert torch.allclose(loss, expected, atol=1e-5)
        assert best.equal((students @ head.T).argmax(-1))
        for got, want in zip(torch.autograd.grad(loss * 2, (students, head)), grads, strict=True):
            assert torch.allclose(got, 2 * want, atol=1e-5)
        assert best_tokens(teacher, teacher_head).equal((teacher @ teacher_head.T).argmax(-1))


def test_places_of_a_pack(tiny_target: Target) -> None:
    """Token p is predicted in step i from p - 2 - i, if that is in the same row."""
    model, _ = random_model(tiny_target)
    pack = random_pack(model, [6, 8], [(1, 6), (4, 8)])
    assert pack.predicted.tolist() == [2, 3, 4, 5, 10, 11, 12, 13]  # token 1 of row 0 has only one before it
    at = places(pack, 3)
    assert at.queries.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert at.exists.int().tolist()[1] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert at.queries[at.index[2][4:]].tolist() == [6, 7, 8, 9]
    assert at.spans == ((0, 4, 0, 6), (4, 10, 6, 14))


def naive_logits(
    model: Eagle3, embedding: torch.Tensor, ids: torch.Tensor, aux: torch.Tensor, t: int, steps: int
) -> list[torch.Tensor]:
    """The definition, for one place t of one row: every step over the whole prefix with explicit keys."""
    layer, logits = model.midlayer, []
    fused = model.fc(aux[: t + 1])
    x = layer.inputs(embedding[ids[1 : t + 2]], fused)
    keys, values = layer.self_attn.keys_values(x, torch.arange(t + 1))
    x, hidden = x[-1:], fused[-1:]
    for step in range(steps):
        position = torch.tensor([t + step])
        if step:
            x = layer.inputs(embedding[ids[t + 1 + step]][None], hidden)
            key, value = layer.self_attn.keys_values(x, position)
            keys, values = torch.cat((keys, key)), torch.cat((values, value))
        group = model.arch.num_attention_heads // model.arch.num_key_value_heads
        spread_keys, spread_values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)

        def mix(query: torch.Tensor, k: torch.Tensor = spread_keys, v: torch.Tensor = spread_values) -> torch.Tensor:
            scores = torch.einsum("qhd,khd->hqk", query, k) / model.arch.head_dim**0.5
            return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)

        hidden = layer(x, hidden, position, mix)
        logits.append(model.logits(hidden)[0])
    return logits


def test_unrolling_equals_the_definition(tiny_target: Target) -> None:
    model, ends = random_model(tiny_target)
    pack = random_pack(model, [6, 9], [(3, 6), (4, 9)])
    at = places(pack, 3)
    with torch.no_grad():
        outputs = unroll(model, ends.embedding, pack, at, 3)
        for row, (start, stop) in enumerate(pack.bounds):
            for q, place in enumerate(at.queries.tolist()):
                if start <= place < stop:
                    steps = min(3, stop - place - 2)
                    wanted = naive_logits(
                        model, ends.embedding, pack.ids[start:stop], pack.aux[start:stop], place - start, steps
                    )
                    for step in range(steps):
                        got = model.logits(outputs[step][q])
                        assert torch.allclose(got, wanted[step], atol=1e-4), (row, place, step)


def test_no_leak_in_training(tiny_target: Target) -> None:
    """Changing tokens from the predicted one on, or states from the one before it on, changes no logit of step i."""
    model, ends = random_model(tiny_target)
    pack = random_pack(model, [12], [(4, 12)])
    at = places(pack, 3)
    with torch.no_grad():
        before = unroll(model, ends.embedding, pack, at, 3)
        for q, place in enumerate(at.queries.tolist()):
            for step in range(3):
                predicted = place + 2 + step
                ids, aux, last = pack.ids.clone(), pack.aux.clone(), torch.randn_like(pack.last)
                ids[predicted:] = (ids[predicted:] + 1) % model.arch.vocab_size
                aux[place + 1 :] += 1.0  # drafting has no state beyond the place it starts from
                changed = replace(pack, ids=ids, aux=aux, last=last)
                after = unroll(model, ends.embedding, changed, at, 3)
                assert torch.equal(before[step][q], after[step][q]), (place, step)
                if predicted <= 12:
                    ids[predicted - 1] += 1  # the token before it does matter
                    moved = unroll(model, ends.embedding, replace(pack, ids=ids % 100), at, 3)
                    assert not torch.equal(before[step][q], moved[step][q])


def test_rows_of_a_pack_do_not_see_each_other(tiny_target: Target) -> None:
    model, ends = random_model(tiny_target)
    objective = Eagle3Objective(model, ends, 3, 0.8)
    pack = random_pack(model, [7, 9], [(3, 7), (2, 9)])
    alone = [
        replace(
            pack,
            ids=pack.ids[a:b],
            aux=pack.aux[a:b],
            last=pack.last[a:b],
            positions=pack.positions[a:b],
            bounds=((0, b - a),),
            rows=(("alone", a),),
            predicted=pack.predicted[(pack.predicted >= a) & (pack.predicted < b)] - a,
        )
        for a, b in pack.bounds
    ]
    with torch.no_grad():
        together, apart = objective(pack)[0], sum(objective(one)[0] for one in alone)
    assert torch.allclose(together, apart, rtol=1e-5)
    assert objective.count(pack) == sum(objective.count(one) for one in alone)


def test_loss_is_the_weighted_sum_over_steps(tiny_target: Target) -> None:
    """Teacher: the target's distribution on the draft slice, renormalized; tokens outside carry no loss."""
    model, ends = random_model(tiny_target)
    objective = Eagle3Objective(model, ends, 2, 0.5)
    pack = random_pack(model, [10], [(4, 10)])
    at, ids = places(pack, 2), ids_of(model.d2t)
    teacher = ends.final(pack.last[pack.predicted - 1]) @ ends.head.T
    inside = torch.isin(teacher.argmax(-1), ids)
    with torch.no_grad():
        outputs = unroll(model, ends.embedding, pack, at, 2)
        expected = 0.0
        for step in range(2):
            logs = model.logits(outputs[step][at.index[step]]).log_softmax(-1)
            losses = -(teacher[:, ids].softmax(-1) * logs).sum(-1)
            expected += 0.5**step * float(losses[inside].sum())
        loss, stats = objective(pack)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert objective.count(pack) == int(inside.sum())
    assert stats.outside == 6 - int(inside.sum()) and stats.supervised == 6


def test_stats_count_chains() -> None:
    hits = torch.tensor([[True, False, True], [True, True, True]])
    index, exists = torch.tensor([[1, 2, 3], [0, 1, 2]]), torch.ones(2, 3, dtype=torch.bool)
    stats = Stats.of_chains(hits, index, exists, starts=4, outside=0)
    assert stats.agreed == [2.0, 1.0] and stats.reached == 3.0  # start 1 goes on, start 2 failed first, 3 ends
    stats.add(stats)
    figures = stats.figures()
    assert figures["accept_length"] == 2.0 and figures["acceptance_0"] == pytest.approx(2 / 3)


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


def test_loss_of_nothing_predicted_is_zero(tiny_target: Target) -> None:
    model, ends = random_model(tiny_target)
    pack = random_pack(model, [4], [(0, 1)])
    loss, stats = Eagle3Objective(model, ends, 3, 0.8)(pack)
    loss.backward()
    assert float(loss.detach()) == 0 and stats.reached == 0 and math.isfinite(stats.figures()["loss"])
