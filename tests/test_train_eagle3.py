"""EAGLE-3's objective: places, unrolling, loss, leaks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from drafting import random_model, random_pack

from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.vocabulary import ids_of
from draftmill.target import Target
from draftmill.train.eagle3 import Eagle3Objective, places, unroll
from draftmill.train.loss import SoftCrossEntropy, best_tokens
from draftmill.train.stats import Stats


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


def test_loss_of_nothing_predicted_is_zero(tiny_target: Target) -> None:
    model, ends = random_model(tiny_target)
    pack = random_pack(model, [4], [(0, 1)])
    loss, stats = Eagle3Objective(model, ends, 3, 0.8)(pack)
    loss.backward()
    assert float(loss.detach()) == 0 and stats.reached == 0 and math.isfinite(stats.figures()["loss"])
