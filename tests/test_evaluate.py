"""Decoding: lossless greedy and sampled, the same logits as in training, no leak, baselines, figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from drafting import Talk, make_project, talks

from draftmill.drafters import Drafter, Recipe
from draftmill.drafters.architecture import resolve
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends, read_ends
from draftmill.drafters.initialize import new_dflash, new_eagle3
from draftmill.errors import BuildError, DataError
from draftmill.evaluate import Evaluate, EvaluateRun
from draftmill.evaluate.bench import spread
from draftmill.evaluate.decode import Decoded, Greedy, Sampling, decode
from draftmill.evaluate.figures import accept_length, acceptance, difference, interval
from draftmill.evaluate.prompts import read_prompts
from draftmill.evaluate.proposers import (
    DFlashProposer,
    Eagle3Proposer,
    Nothing,
    PromptLookup,
    Proposal,
    Proposer,
    best,
    proposer_of,
)
from draftmill.evaluate.session import Live, Recording, Replay, Verified
from draftmill.evaluate.stage import evaluate
from draftmill.export.stage import build as export
from draftmill.hidden_states import States
from draftmill.target import Target, load_model, prepare, shape
from draftmill.train import TrainRun
from draftmill.train.dflash import blocks, fill
from draftmill.train.eagle3 import places, unroll
from draftmill.train.stage import train

RECIPE = Recipe(epochs=12.0, learning_rate=2e-3, pack_tokens=64, heldout_every=1000)
EAGLE3 = Drafter(kind="eagle3", draft_vocab_size=200, ttt_steps=3, export_dtype="float32", recipe=RECIPE)
DFLASH = Drafter(
    kind="dflash", layers=[2, 4, 5], num_layers=2, block_size=5, anchors=256, export_dtype="float32", recipe=RECIPE
)
QUICK = Evaluate(max_prompts=3, max_new_tokens=24, bootstrap=200)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tiny_target: Target) -> Any:
    return load_model(tiny_target, "cpu")


@pytest.fixture(scope="module")
def ends(tiny_target: Target) -> Ends:
    return read_ends(prepare(tiny_target), shape(tiny_target))


@pytest.fixture(scope="module")
def eagle(tiny_target: Target, ends: Ends) -> Eagle3:
    arch = resolve(EAGLE3, shape(tiny_target))
    return new_eagle3(EAGLE3, arch, ends, torch.arange(30, 230), 0)


@pytest.fixture(scope="module")
def dflash(tiny_target: Target) -> DFlash:
    return new_dflash(resolve(DFLASH, shape(tiny_target), tiny_target.mask_token_id), 0)


@pytest.fixture
def live(model: Any) -> Any:
    made = Live(model, (2, 4, 5))
    yield made
    made.close()


def prompts(count: int, length: int = 9, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(33, 120, (length + i % 5,), generator=generator).tolist() for i in range(count)]


class Oracle:
    """Proposes the true continuation, with a wrong token now and then: every number of accepted drafts occurs."""

    def __init__(self, answer: list[int]) -> None:
        self.answer, self.at = answer, 0

    def begin(self, prompt: Any) -> None:
        self.at = 0

    def feed(self, aux: Any, following: Any) -> None:
        self.at = 1 if self.at == 0 else self.at + len(following)

    def propose(self, count: int, pick: Any) -> Proposal:
        drafts = self.answer[self.at : self.at + count]
        wrong = Random(f"{self.at} {self.answer}").randrange(count + 1)
        drafts = [token if i != wrong else (token + 1) % 200 for i, token in enumerate(drafts)]
        return Proposal(drafts, [None] * len(drafts))


def greedy(live: Any, proposer: Any, prompt: list[int], drafts: int, **options: Any) -> Decoded:
    return decode(live, proposer, prompt, Greedy(), drafts=drafts, max_new_tokens=30, eos=(), **options)


def test_plain_decoding_is_generate(live: Live, model: Any) -> None:
    for prompt in prompts(3):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        text = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=30, min_new_tokens=30, do_sample=False, pad_token_id=0
        )
        assert greedy(live, Nothing(), prompt, 0).tokens == text[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["eagle", "dflash", "lookup", "oracle"])
def test_greedy_drafting_never_changes_the_text(
    kind: str, live: Live, eagle: Eagle3, dflash: DFlash, ends: Ends
) -> None:
    same_text(kind, 5, live, eagle, dflash, ends)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "dflash", "lookup", "oracle"])
def test_greedy_drafting_never_changes_the_text_of_100_prompts(
    kind: str, live: Live, eagle: Eagle3, dflash: DFlash, ends: Ends
) -> None:
    same_text(kind, 100, live, eagle, dflash, ends)


def same_text(kind: str, count: int, live: Live, eagle: Eagle3, dflash: DFlash, ends: Ends) -> None:
    makers: dict[str, Callable[[list[int]], tuple[Proposer, int]]] = {
        "eagle": lambda _: (proposer_of(eagle, ends), 3),
        "dflash": lambda _: (proposer_of(dflash, ends), 4),
        "lookup": lambda _: (PromptLookup(3), 3),
        "oracle": lambda text: (Oracle(text), 3),
    }
    seen = set()
    for prompt in prompts(count, seed=1):
        plain = greedy(live, Nothing(), prompt, 0).tokens
        proposer, drafts = makers[kind](plain)
        drafted = greedy(live, proposer, prompt, drafts)
        assert drafted.tokens == plain[: len(drafted.tokens)] and len(drafted.tokens) > 26 - drafts
        assert live.disagreement(prompt, drafted.tokens) == (None, 0.0)
        seen |= set(drafted.steps)
    if kind == "oracle":
        assert seen == {0, 1, 2, 3}


def test_end_token_ends_the_text_and_counts_no_further(live: Live) -> None:
    prompt = prompts(1)[0]
    plain = greedy(live, Nothing(), prompt, 0).tokens
    stop = next(token for i, token in enumerate(plain) if i >= 5 and token not in plain[:i])
    end = plain.index(stop)
    drafted = decode(live, Oracle(plain), prompt, Greedy(), drafts=3, max_new_tokens=30, eos=(stop,))
    assert drafted.tokens == plain[: end + 1] and drafted.emitted == end


def test_replay_equals_live_decoding(live: Live, eagle: Eagle3, dflash: DFlash, ends: Ends) -> None:
    for prompt in prompts(2, seed=2):
        plain = greedy(live, Nothing(), prompt, 0, record=True)
        recording = Recording(prompt, plain.tokens, torch.cat(plain.aux))
        assert len(recording.aux) == len(prompt) + len(plain.tokens) - 1
        for make in (lambda: proposer_of(eagle, ends), lambda: proposer_of(dflash, ends), lambda: PromptLookup(2)):
            for drafts in (2, 4):
                one, other = greedy(live, make(), prompt, drafts), greedy(Replay(recording), make(), prompt, drafts)
                assert (one.tokens, one.steps) == (other.tokens, other.steps)


def eagle_pack(ids: list[int], aux: torch.Tensor, answer: int) -> Any:
    from draftmill.train.data import Pack

    positions = torch.arange(len(ids))
    return Pack(
        ids=torch.tensor(ids),
        aux=aux,
        last=aux[:, :64],
        positions=positions,
        bounds=((0, len(ids)),),
        rows=(("train", 0),),
        predicted=positions[answer:],
    )


@torch.inference_mode()
def test_eagle_decodes_with_the_logits_it_was_trained_with(live: Live, eagle: Eagle3, ends: Ends) -> None:
    """A chain from each prefix, its tokens forced to the text's, against the unrolled training path."""
    prompt = prompts(1, 12, seed=3)[0]
    plain = greedy(live, Nothing(), prompt, 0, record=True)
    text, aux = [*prompt, *plain.tokens], torch.cat(plain.aux)
    pack = eagle_pack(text[:-1], aux, len(prompt))
    at = places(pack, 3)
    outputs = unroll(eagle, ends.embedding, pack, at, 3)
    proposer = Eagle3Proposer(eagle, ends.embedding)
    proposer.begin(prompt)
    for place in range(len(text) - 4):
        proposer.feed(aux[place : place + 1], [text[place + 1]])
        if place not in at.queries.tolist():
            continue
        tokens: list[int] = []
        for step, logits in enumerate(proposer.chain(3, tokens)):
            wanted = eagle.logits(outputs[step][at.queries.tolist().index(place)])
            assert torch.allclose(logits, wanted, atol=1e-4), (place, step)
            tokens.append(text[place + 2 + step])


@torch.inference_mode()
def test_dflash_decodes_with_the_logits_it_was_trained_with(live: Live, dflash: DFlash, ends: Ends) -> None:
    prompt = prompts(1, 12, seed=4)[0]
    plain = greedy(live, Nothing(), prompt, 0, record=True)
    text, aux = [*prompt, *plain.tokens], torch.cat(plain.aux)
    pack = eagle_pack(text[:-1], aux, len(prompt))
    anchors = torch.arange(len(prompt), len(text) - 6)
    outputs = fill(dflash, ends.embedding, pack, blocks(pack, anchors, 5, 4.0))
    proposer = DFlashProposer(dflash, ends)
    proposer.begin(prompt)
    for place in range(int(anchors[-1])):
        proposer.feed(aux[place : place + 1], [text[place + 1]])
        if place + 1 in anchors.tolist():
            wanted = outputs[place + 1 - int(anchors[0]), 1:] @ ends.head.T
            assert torch.allclose(proposer.logits(), wanted, atol=1e-4), place


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_no_leak_in_decoding(kind: str, live: Live, eagle: Eagle3, dflash: DFlash, ends: Ends) -> None:
    """What a proposer says depends on what it was fed, not on what a longer read of the target has seen since."""
    text = prompts(1, 20, seed=5)[0]
    whole = live.begin(text).aux
    for cut in (8, 15):
        short = live.begin(text[:cut]).aux
        other = live.begin([*text[:cut], *[(t + 1) % 200 for t in text[cut:]]]).aux
        said = []
        for aux in (whole[:cut], other[:cut], short):
            proposer = proposer_of(eagle if kind == "eagle" else dflash, ends)
            proposer.begin(text)
            proposer.feed(aux, text[1 : cut + 1])
            logits: list[torch.Tensor] = []

            def pick(one: torch.Tensor, kept: list[torch.Tensor] = logits) -> tuple[int, None]:
                kept.append(one)
                return best(one)

            proposer.propose(3, pick)
            said.append(torch.stack(logits))
        assert torch.allclose(said[0], said[2], atol=1e-4) and torch.allclose(said[0], said[1], atol=1e-4)


class Table:
    """A target whose next-token distribution depends on the last token only: 5 tokens, no aux states."""

    def __init__(self) -> None:
        self.table = torch.randn(5, 5, generator=torch.Generator().manual_seed(3))

    def begin(self, prompt: Any) -> Verified:
        return self.verify(prompt[-1:])

    def verify(self, tokens: Any) -> Verified:
        logits = self.table[list(tokens)]
        return Verified(logits.argmax(-1).tolist(), logits, torch.empty(len(tokens), 0))

    def keep(self, count: int) -> None: ...


class Guess:
    """Drafts from a table of its own, or, for `certain`, always the same tokens."""

    def __init__(self, certain: bool) -> None:
        self.certain = certain
        self.table = torch.randn(5, 5, generator=torch.Generator().manual_seed(4))
        self.last = 0

    def begin(self, prompt: Any) -> None: ...

    def feed(self, aux: Any, following: Any) -> None:
        self.last = following[-1]

    def propose(self, count: int, pick: Any) -> Proposal:
        tokens: list[int] = []
        drawn: list[torch.Tensor | None] = []
        for _ in range(count):
            token, distribution = pick(self.table[tokens[-1] if tokens else self.last])
            tokens.append(1 if self.certain else token)
            drawn.append(None if self.certain else distribution)
        return Proposal(tokens, drawn)


@pytest.mark.parametrize("certain", [False, True])
def test_sampling_is_lossless(certain: bool) -> None:
    """Chi-square of pairs of tokens against the target's own distribution, over 6,000 draws."""
    target, rule, draws = Table(), Sampling(0.8, seed=7), 6000
    counts = torch.zeros(5, 5)
    for _ in range(draws):
        text = decode(target, Guess(certain), [2], rule, drafts=2, max_new_tokens=6, eos=()).tokens
        counts[text[1], text[2]] += 1
    steps = (target.table / 0.8).softmax(-1)
    expected = ((steps[2] @ steps)[:, None] * steps) * draws
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < 51.2, statistic  # 24 degrees of freedom, p = 0.001


def test_sampling_a_drafter_spreads_its_distribution(live: Live, eagle: Eagle3, ends: Ends) -> None:
    rule = Sampling(1.0, seed=0)
    proposer = proposer_of(eagle, ends)
    prompt = prompts(1)[0]
    proposer.begin(prompt)
    proposer.feed(live.begin(prompt).aux, [*prompt[1:], 40])
    proposal = proposer.propose(3, rule.pick)
    for token, drawn in zip(proposal.tokens, proposal.distributions, strict=True):
        assert drawn is not None and float(drawn.sum()) == pytest.approx(1.0) and 30 <= token < 230
        assert float(drawn[:30].sum()) == 0
    decoded = decode(live, proposer, prompt, rule, drafts=3, max_new_tokens=20, eos=())
    assert len(decoded.tokens) >= 17


def test_prompt_lookup_copies_the_last_match() -> None:
    lookup = PromptLookup(2)
    lookup.begin([1, 2, 3])
    lookup.feed(torch.empty(0), [2, 3, 9, 2, 3, 8, 2, 3])
    assert lookup.propose(3, best).tokens == [8, 2, 3]
    lookup.feed(torch.empty(0), [77])
    assert lookup.propose(3, best).tokens == []


def test_figures() -> None:
    decoded = [Decoded(tokens=[], steps=[0, 3, 1], proposed=[3, 3, 3]), Decoded(tokens=[], steps=[0], proposed=[0])]
    assert accept_length(decoded) == 2.0 and accept_length([Decoded(tokens=[1])]) == 1.0
    assert acceptance(decoded, 3) == [pytest.approx(2 / 3), 0.5, 1.0]
    low, high = interval(decoded, 500, 0)
    assert 1.0 <= low <= 2.0 <= high <= 7 / 3
    assert difference([1, 2, 3], [1, 2]) is None and difference([1, 2, 3], [1, 9]) == 1
    assert spread(10, 3) == {0, 3, 7} and spread(2, 5) == {0, 1} == spread(2, None)


@pytest.fixture(params=["eagle3", "dflash"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Target
) -> Drafter:
    """A directory with a trained and exported drafter."""
    monkeypatch.chdir(tmp_path)
    states = States(for_=["eagle3"], dtype="float32")
    make_project(talks(tiny_target, 14, 6), tiny_target, states)
    drafter = EAGLE3 if request.param == "eagle3" else DFLASH
    train(drafter, tiny_target, 0, TrainRun(), "cpu")
    export(drafter)
    return drafter


def test_whole_stage(project: Drafter, tiny_target: Target) -> None:
    tags = {"a": ["maths", "short"], "b": ["short"]}
    settings, run = replace(QUICK, plain_prompts=2), EvaluateRun(examples=2)
    metrics = evaluate(settings, project, tiny_target, 0, run, "cpu", tags)
    assert {tag: one["prompts"] for tag, one in metrics["tags"].items()} == {"maths": 3, "short": 6}
    assert json.loads(Path("build/evaluate/metrics.json").read_text()) == metrics
    assert metrics["lossless"] and metrics["prompts"] == 6 and set(metrics["datasets"]) == {"a", "b"}
    wanted = {
        *("accept_length", "accept_length_low", "accept_length_high", "accept_length_untrained", "acceptance"),
        *("accept_length_prompt_lookup", "speedup", "prompts", "lossless"),
    }
    assert wanted <= metrics.keys() and all(wanted <= one.keys() for one in metrics["datasets"].values())
    assert metrics["accept_length_low"] <= metrics["accept_length"] <= metrics["accept_length_high"]
    table = Path("build/evaluate/per_dataset.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table] == ["dataset", "all", "a", "b"]
    assert len(Path("build/evaluate/examples.jsonl").read_text().splitlines()) == 2
    sampled = evaluate(replace(QUICK, temperature=1.0), project, tiny_target, 0, EvaluateRun(), "cpu")
    assert sampled["lossless"] and sampled["accept_length"] >= 1


def test_changed_text_is_a_fault_unless_tied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Drafter, tiny_target: Target
) -> None:
    def wrong(self: Greedy, proposal: Proposal, verified: Verified) -> list[int]:
        return [(verified.best[0] + 1) % 200]

    monkeypatch.setattr(Greedy, "judge", wrong)
    with pytest.raises(BuildError, match="changed the text of 6 prompts") as caught:
        evaluate(replace(QUICK, plain_prompts=1), project, tiny_target, 0, EvaluateRun(), "cpu")
    assert "row r" in str(caught.value)
    lax = replace(QUICK, plain_prompts=1, tie_margin=1e9)
    metrics = evaluate(lax, project, tiny_target, 0, EvaluateRun(), "cpu")
    assert metrics["lossless"] and metrics["ties"] == 6
    assert len(Path("build/evaluate/ties.jsonl").read_text().splitlines()) == 6


def test_prompts_stand_before_one_turn_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Target
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        Talk(dataset="d", id=f"x{i}", ids=list(range(40, 60)), answers=[(4, 8), (12, 20)], held_out=i < 16)
        for i in range(18)
    ]
    make_project(rows, tiny_target)
    path = Path("build/blend/heldout.parquet")
    found = read_prompts(path, Evaluate(max_prompts=12), seed=0)
    assert [prompt.id for prompt in found] == sorted(prompt.id for prompt in found) and len(found) == 12
    assert {len(prompt.ids) for prompt in found} == {4, 12}
    more = read_prompts(path, Evaluate(max_prompts=13), seed=0)
    assert {prompt.id for prompt in found} < {prompt.id for prompt in more}
    with pytest.raises(DataError, match="give no prompt"):
        read_prompts(path, Evaluate(max_prompt_tokens=3), seed=0)
    with pytest.raises(BuildError, match="not there"):
        read_prompts(Path("nowhere.parquet"), Evaluate(), seed=0)


@pytest.mark.parametrize("change", [{"max_prompts": 0}, {"temperature": -1.0}, {"max_new_tokens": 3}])
def test_settings_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Evaluate(**change)
