"""DFlash: anchors, blocks, loss, leaks, and that it learns."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drafting import make_project, random_pack, talks

from draftmill.drafters import Drafter, Recipe
from draftmill.drafters.architecture import resolve
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.ends import Ends
from draftmill.drafters.initialize import new_dflash
from draftmill.hidden_states import States
from draftmill.target import Target, shape
from draftmill.train import TrainRun
from draftmill.train.data import Pack
from draftmill.train.dflash import DFlashObjective, blocks, draw_anchors, fill
from draftmill.train.loss import HardCrossEntropy
from draftmill.train.stage import train

SMALL = Drafter(
    kind="dflash",
    layers=[2, 4, 5],
    num_layers=2,
    block_size=4,
    gamma=3.0,
    anchors=256,
    recipe=Recipe(epochs=15.0, learning_rate=2e-3, pack_tokens=64, heldout_every=20),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def model(tiny_target: Target) -> DFlash:
    return new_dflash(resolve(SMALL, shape(tiny_target), tiny_target.mask_token_id), seed=1)


@pytest.fixture
def ends(model: DFlash) -> Ends:
    torch.manual_seed(2)
    table = torch.randn(model.arch.vocab_size, model.arch.hidden_size)
    return Ends(embedding=table, norm=torch.ones(model.arch.hidden_size), head=torch.randn_like(table), eps=1e-5)


def pack_of(model: DFlash, lengths: list[int], answers: list[tuple[int, int]]) -> Pack:
    """Random rows with as many states as EAGLE-3 has layers, which SMALL's are too."""
    return random_pack(model, lengths, answers)  # type: ignore[arg-type]


def test_anchors_are_supervised_and_followed_by_a_supervised_token(model: DFlash) -> None:
    pack = pack_of(model, [8, 9], [(3, 8), (5, 8)])
    assert draw_anchors(pack, 100, (0, 0)).tolist() == [3, 4, 5, 6, 13, 14]
    few = draw_anchors(pack, 3, (0, 1))
    assert len(few) == 3 and few.tolist() == sorted(few.tolist())
    assert few.tolist() == draw_anchors(pack, 3, (0, 1)).tolist()
    assert {tuple(draw_anchors(pack, 3, (0, draw)).tolist()) for draw in range(9)} != {tuple(few.tolist())}


def test_blocks_of_a_pack(model: DFlash) -> None:
    pack = pack_of(model, [8, 9], [(3, 7), (5, 8)])
    made = blocks(pack, torch.tensor([5, 13]), 4, gamma=2.0)
    assert made.labels[0, :1].tolist() == pack.ids[6:7].tolist() and made.labels[1].tolist() == pack.ids[14:17].tolist()
    assert made.weights[0].tolist() == [1.0, 0.0, 0.0]  # token 7 has no mask; place 8 is another row
    assert made.weights[1].tolist() == pytest.approx([1.0, math.exp(-0.5), 0.0])
    assert made.spans == ((0, 1, 0, 8), (1, 2, 8, 17))


def test_hard_cross_entropy_equals_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    states, head = torch.randn(9, 8, requires_grad=True), torch.randn(11, 8)
    labels, weights = torch.randint(0, 11, (9,)), torch.rand(9)
    expected = (weights * torch.nn.functional.cross_entropy(states @ head.T, labels, reduction="none")).sum()
    (wanted,) = torch.autograd.grad(expected, states)
    for size in (1 << 20, 30):
        monkeypatch.setattr("draftmill.train.loss.CHUNK_VALUES", size)
        loss, best = HardCrossEntropy.apply(states, head, labels, weights)
        assert torch.allclose(loss, expected, atol=1e-5) and best.equal((states @ head.T).argmax(-1))
        (got,) = torch.autograd.grad(loss, states)
        assert torch.allclose(got, wanted, atol=1e-5)


def test_no_leak_in_training(model: DFlash, ends: Ends) -> None:
    """Of the row, a block sees tokens up to its anchor and states strictly before it; nothing of other rows."""
    pack = pack_of(model, [6, 12], [(3, 6), (4, 12)])
    anchors = torch.tensor([4, 11, 13])
    made = blocks(pack, anchors, 4, 3.0)
    with torch.no_grad():
        before = fill(model, ends.embedding, pack, made)
        for number, anchor in enumerate(anchors.tolist()):
            ids, aux = pack.ids.clone(), pack.aux.clone()
            ids[anchor + 1 :] = (ids[anchor + 1 :] + 1) % 200
            aux[anchor:] += 1.0
            if anchor > 5:
                aux[:6] -= 1.0
            changed = replace(pack, ids=ids, aux=aux, last=torch.randn_like(pack.last))
            after = fill(model, ends.embedding, changed, made)
            assert torch.equal(before[number], after[number]), anchor
            aux[anchor - 1] += 1.0  # the state just before it does matter
            moved = fill(model, ends.embedding, replace(pack, aux=aux), made)
            assert not torch.equal(before[number], moved[number])


def test_block_is_seen_both_ways(model: DFlash, ends: Ends) -> None:
    """Every place of a block depends on every other one's input."""
    pack = pack_of(model, [10], [(4, 10)])
    made = blocks(pack, torch.tensor([6]), 4, 3.0)
    with torch.no_grad():
        before = fill(model, ends.embedding, pack, made)
        embedding = ends.embedding.clone()
        embedding[pack.ids[6]] += 1.0
        after = fill(model, embedding, pack, made)
    assert bool((before != after).any(-1).all())


def test_loss_is_the_weighted_sum(model: DFlash, ends: Ends) -> None:
    objective = DFlashObjective(model, ends, anchors=1024, gamma=3.0, seed=0)
    pack = pack_of(model, [12], [(4, 12)])
    made = objective.blocks(pack, draw=0)
    with torch.no_grad():
        logits = fill(model, ends.embedding, pack, made)[:, 1:] @ ends.head.T
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), made.labels.flatten(), reduction="none")
        loss, stats = objective(pack, 0)
    assert float(loss) == pytest.approx(float((losses * made.weights.flatten()).sum()), rel=1e-5)
    assert objective.count(pack, 0) == pytest.approx(float(made.weights.sum())) and stats.reached == len(made.anchors)


def test_pack_without_a_place_for_a_block(model: DFlash, ends: Ends) -> None:
    objective = DFlashObjective(model, ends, anchors=64, gamma=3.0, seed=0)
    pack = pack_of(model, [4], [(3, 4)])
    loss, stats = objective(pack, 0)
    loss.backward()
    assert float(loss.detach()) == 0 and stats.reached == 0 and objective.count(pack, 0) == 0


def test_whole_stage_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Target) -> None:
    monkeypatch.chdir(tmp_path)
    make_project(talks(tiny_target, 14, 4), tiny_target, States(for_=["eagle3", "dflash"], dtype="float32"))
    progress = train(SMALL, tiny_target, 0, TrainRun(checkpoint_every_s=0.0, log_every=5), "cpu")
    lines = [line for line in progress.history if "train/loss" in line]
    assert lines[-1]["train/loss"] < lines[0]["train/loss"]
    assert lines[-1]["train/accept_length"] > lines[0]["train/accept_length"]
    facts = json.loads(Path("build/train/drafter/drafter.json").read_text())
    assert facts["architecture"]["kind"] == "dflash" and facts["architecture"]["mask_token_id"] == 259
    first = Path("build/train/drafter/model.safetensors").read_bytes()
    train(SMALL, tiny_target, 0, TrainRun(log_every=3), "cpu")
    assert Path("build/train/drafter/model.safetensors").read_bytes() == first
