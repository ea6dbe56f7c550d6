"""What a training step costs beyond its matrix products, and beside other trainers' steps.

    python benchmarks/train.py [--quick] [--json]

All figures are ratios in one run, one thread, fp32, with the embedded target's dimensions (hidden 576, 9 heads
of 64, feed-forward 1536, vocabulary 49152, draft vocabulary 8192), one pack of 512 tokens whose rows are half
answer, 3 unrolled steps:

products     time of the step's matrix products alone, same shapes, forward and backward / time of the step
speculators  time of speculators' EAGLE-3 step (eager) / time of ours; and peak memory of ours / of theirs
specforge    the same for DFlash against SpecForge's (sdpa), 5 layers, blocks of 16, 32 anchors
decoding     share of a speculative decoding step that is spent outside of model calls
vocabulary   seconds for the draft-vocabulary map of a vocabulary of 150,000

The peers come from .deps/peers (requirements/peers.txt); without them their figures are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Without this folder: its tokenize.py would stand for the module of the standard library that others import.
sys.path[:] = [str(HERE / "common"), *(folder for folder in sys.path if Path(folder).resolve() != HERE)]

import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from figures import Figure, at_least, at_most, main
from torch.utils._python_dispatch import TorchDispatchMode

from draftmill.drafters.architecture import Architecture
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends
from draftmill.drafters.initialize import new_dflash, random_weights
from draftmill.drafters.vocabulary import choose, membership, offsets
from draftmill.train.data import Pack
from draftmill.train.dflash import DFlashObjective
from draftmill.train.eagle3 import Eagle3Objective

HIDDEN, VOCABULARY, DRAFT, TOKENS, STEPS, ROWS = 576, 49152, 8192, 512, 3, 4
PRODUCTS, SPECULATORS, SPECFORGE, MEMORY, DECODING, MAP_S = 0.6, 1.5, 1.2, 1.0, 0.10, 1.0
PEERS = Path(__file__).parent.parent / ".deps" / "peers"
PRODUCT_OPS = {"aten::mm", "aten::bmm", "aten::addmm"}


def architecture(kind: str) -> Architecture:
    """The embedded target's dimensions."""
    block = kind == "dflash"
    return Architecture(
        kind=kind,
        hidden_size=HIDDEN,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        num_layers=5 if block else 1,
        layers=(2, 9, 15, 21, 28) if block else (2, 15, 27),
        vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY if block else DRAFT,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        max_position_embeddings=8192,
        target_layers=30,
        block_size=16 if block else 0,
        mask_token_id=16 if block else None,
    )


def ends() -> Ends:
    """Random target ends, tied."""
    table = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(0)) * 0.05
    return Ends(embedding=table, norm=torch.ones(HIDDEN), head=table, eps=1e-5)


def pack(layers: int, rows: int = ROWS) -> Pack:
    """Rows of equal length, the second half of each supervised."""
    generator, length = torch.Generator().manual_seed(1), TOKENS // rows
    positions = torch.arange(length).repeat(rows)
    return Pack(
        ids=torch.randint(0, VOCABULARY, (TOKENS,), generator=generator),
        aux=torch.randn(TOKENS, layers * HIDDEN, generator=generator),
        last=torch.randn(TOKENS, HIDDEN, generator=generator),
        positions=positions,
        bounds=tuple((row * length, (row + 1) * length) for row in range(rows)),
        rows=tuple(("train", row) for row in range(rows)),
        predicted=(positions >= length // 2).nonzero().squeeze(-1),
    )


def eagle(target: Ends) -> Eagle3:
    """A drafter whose vocabulary is every sixth token."""
    model = Eagle3(architecture("eagle3"))
    random_weights(model, 0)
    ids = torch.arange(0, VOCABULARY, VOCABULARY // DRAFT)[:DRAFT]
    with torch.no_grad():
        model.d2t.copy_(offsets(ids))
        model.t2d.copy_(membership(ids, VOCABULARY))
        model.lm_head.weight.copy_(target.head[ids])
    return model


def eagle_step(target: Ends) -> Callable[[], None]:
    """Forward and backward of our EAGLE-3 step."""
    objective, batch = Eagle3Objective(eagle(target), target, STEPS, 0.8), pack(3)
    # Random states have their best token anywhere: count every position, as a trained map nearly does.
    objective.drafter.t2d.fill_(True)
    objective.best(batch)

    def step() -> None:
        loss, _ = objective(batch)
        loss.backward()
        objective.zero_grad(set_to_none=True)

    return step


def dflash_step(target: Ends) -> Callable[[], None]:
    """Forward and backward of our DFlash step."""
    model = new_dflash(architecture("dflash"), 0)
    objective, batch = DFlashObjective(model, target, anchors=64, gamma=7.0, seed=0), pack(5, rows=1)

    def step() -> None:
        loss, _ = objective(batch, 0)
        loss.backward()
        objective.zero_grad(set_to_none=True)

    return step


class Recorder(TorchDispatchMode):
    """Notes the shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...], bool, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if name in PRODUCT_OPS:
            a, b = (one for one in args if isinstance(one, torch.Tensor) and one.dim() >= 2)
            self.shapes.append((tuple(a.shape), tuple(b.shape), _turned(a), _turned(b)))
        return func(*args, **(kwargs or {}))


def _turned(x: torch.Tensor) -> bool:
    return x.stride(-1) != 1


def products(step: Callable[[], None]) -> Callable[[], None]:
    """The matrix products of a step alone, on matrices of the same shapes and layouts."""
    with Recorder() as seen:
        step()

    def made(shape: tuple[int, ...], turned: bool) -> torch.Tensor:
        return torch.randn(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2) if turned else torch.randn(*shape)

    pairs = [(made(a, x), made(b, y)) for a, b, x, y in seen.shapes]

    def run() -> None:
        for a, b in pairs:
            torch.matmul(a, b)

    return run


def timed(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each, the runs taken in turn so that a busy machine slows all alike."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            began = time.process_time()
            run()
            taken[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def speculators_step(target: Ends) -> Callable[[], None]:
    """Forward and backward of speculators' EAGLE-3 in eager mode, on the same pack."""
    sys.path += [str(PEERS), str(Path(__file__).parent.parent / "tests")]
    from speculators.losses.eager import kl_div_loss
    from test_parity import shifted, speculators_model

    peer, batch = speculators_model(eagle(target), target), pack(3)
    inputs = shifted(batch, torch.ones(len(batch.predicted), dtype=torch.bool))

    def step() -> None:
        _, loss, _ = peer(**inputs, ttt_steps=STEPS, ttt_step_loss_decay=0.8, loss_config={"kl": (kl_div_loss, 1.0)})
        loss.backward()
        peer.zero_grad(set_to_none=True)

    return step


def specforge_step(target: Ends) -> Callable[[], None]:
    """Forward and backward of SpecForge's DFlash with sdpa, on the same row."""
    sys.path += [str(PEERS), str(Path(__file__).parent.parent / "tests")]
    from test_parity import specforge_model

    model = DFlash(architecture("dflash"))
    random_weights(model, 0)
    peer, batch = specforge_model(model, target, anchors=32, gamma=7.0), pack(5, rows=1)
    mask = torch.zeros(1, TOKENS)
    mask[0, batch.predicted] = 1

    def step() -> None:
        loss, _, _ = peer(batch.ids[None], batch.aux[None], mask)
        loss.backward()
        peer.zero_grad(set_to_none=True)

    return step


STEP_OF = {"eagle": eagle_step, "speculators": speculators_step, "dflash": dflash_step, "specforge": specforge_step}


def print_peak(name: str) -> None:
    """Print the peak resident MiB of this process after two steps."""
    torch.set_num_threads(1)
    step = STEP_OF[name](ends())
    step()
    step()
    # Not ru_maxrss, which a child inherits from the process it was forked from.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)


def peak(name: str) -> float:
    """The same, of a process of its own."""
    command = [sys.executable, "-P", "-W", "ignore", __file__, "peak", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def decoding_overhead(new_tokens: int) -> float:
    """The share of decoding time outside of the target's and the drafter's calls."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from draftmill.evaluate.decode import Greedy, decode
    from draftmill.evaluate.proposers import Eagle3Proposer
    from draftmill.evaluate.session import Live

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )
    target = ends()
    live, proposer = Live(LlamaForCausalLM(config).eval(), (2, 15, 27)), Eagle3Proposer(eagle(target), target.embedding)
    inside = 0.0

    def counting(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            began = time.perf_counter()
            try:
                return run(*args, **kwargs)
            finally:
                inside += time.perf_counter() - began

        return call

    prompt = list(range(100, 164))
    live.model.forward = counting(live.model.forward)
    proposer.feed, proposer.propose = counting(proposer.feed), counting(proposer.propose)  # type: ignore[method-assign]
    decode(live, proposer, prompt, Greedy(), drafts=3, max_new_tokens=8, eos=())
    inside = 0.0
    began = time.perf_counter()
    decode(live, proposer, prompt, Greedy(), drafts=3, max_new_tokens=new_tokens, eos=())
    return 1 - inside / (time.perf_counter() - began)


def map_seconds() -> float:
    """Seconds for a map of 32,000 out of 150,000 tokens."""
    generator = np.random.default_rng(0)
    seen = generator.integers(0, 1000, 150_000)
    supervised = seen // 2
    began = time.perf_counter()
    ids = choose(supervised, seen, 32_000)
    offsets(ids), membership(ids, 150_000)
    return time.perf_counter() - began


def measure(quick: bool) -> list[Figure]:
    """All figures."""
    torch.set_num_threads(1)
    target, repeats = ends(), 2 if quick else 9
    step = eagle_step(target)
    runs: dict[str, Callable[[], object]] = {"eagle": step, "products": products(step)}
    if PEERS.exists():
        runs |= {name: STEP_OF[name](target) for name in ("speculators", "dflash", "specforge")}
    taken = timed(runs, repeats)
    figures = [at_least("products_of_step", taken["products"] / taken["eagle"], PRODUCTS)]
    if PEERS.exists():
        figures += [
            at_least("speculators_step", taken["speculators"] / taken["eagle"], SPECULATORS),
            at_least("specforge_step", taken["specforge"] / taken["dflash"], SPECFORGE),
        ]
    if PEERS.exists() and not quick:  # four processes that import torch and a peer: half a minute
        figures += [
            at_most("speculators_memory", peak("eagle") / peak("speculators"), MEMORY),
            at_most("specforge_memory", peak("dflash") / peak("specforge"), MEMORY),
        ]
    figures += [
        at_most("decoding_overhead", decoding_overhead(24 if quick else 96), DECODING),
        at_most("vocabulary_map_s", map_seconds(), MAP_S),
    ]
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:  # how this program measures one kind of step in a process of its own
        print_peak(sys.argv[2])
    else:
        main(__doc__, measure, "fewer repeats, no memory")
