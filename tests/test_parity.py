"""The same weights and the same batch in other trainers' code: speculators' EAGLE-3 (eager), SpecForge's DFlash (sdpa).

Needs .deps/peers (requirements/peers.txt); the project itself never imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from drafting import random_model, random_pack
from safetensors.torch import load_file
from test_export import EAGLE3, trained

from draftmill.drafters import Drafter
from draftmill.drafters.architecture import resolve
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends
from draftmill.drafters.initialize import new_dflash
from draftmill.drafters.layers import to_block_outputs
from draftmill.drafters.vocabulary import ids_of
from draftmill.export.stage import export
from draftmill.target import Target, shape
from draftmill.train.data import Pack
from draftmill.train.dflash import DFlashObjective, blocks, fill
from draftmill.train.eagle3 import Eagle3Objective, places, unroll

PEERS = Path(__file__).parent.parent / ".deps" / "peers"
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore")]
STEPS, DECAY = 3, 0.8


@pytest.fixture(autouse=True)
def _peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not PEERS.exists():
        pytest.skip("no .deps/peers: make test-engines installs it")
    torch.set_num_threads(1)
    monkeypatch.setattr(sys, "path", [*sys.path, str(PEERS)])
    yield


def speculators_model(model: Eagle3, ends: Ends) -> Any:
    """Speculators' EAGLE-3 with our weights and the same target ends."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    arch = model.arch
    layer = LlamaConfig(
        hidden_size=arch.hidden_size,
        intermediate_size=arch.intermediate_size,
        num_attention_heads=arch.num_attention_heads,
        num_key_value_heads=arch.num_key_value_heads,
        head_dim=arch.head_dim,
        num_hidden_layers=1,
        rms_norm_eps=arch.rms_norm_eps,
        vocab_size=arch.vocab_size,
        max_position_embeddings=arch.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
    )
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=arch.draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=list(arch.layers),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    peer = Eagle3DraftModel(config)
    peer.load_state_dict(renamed(model.state_dict()), strict=False)
    with torch.no_grad():
        peer.embed_tokens.weight.copy_(ends.embedding)
        peer.verifier_lm_head.weight.copy_(ends.head[ids_of(model.d2t)])
        peer.verifier_norm.weight.copy_(ends.norm)
        peer.verifier_norm.variance_epsilon = ends.eps
    peer.lm_head.weight.requires_grad_(True)
    return peer.float().train()


def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our names as speculators has them."""
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}


def soft_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -(targets.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def shifted(pack: Pack, inside: torch.Tensor) -> dict[str, torch.Tensor]:
    """The pack as speculators wants it: pairs (state t, token t + 1), and the mask of the token after."""
    mask = torch.zeros(len(pack.ids), dtype=torch.bool)
    mask[pack.predicted[inside]] = True
    parts: dict[str, list[torch.Tensor]] = {}
    for number, (start, stop) in enumerate(pack.bounds):
        after = torch.cat((mask[start + 2 : stop], torch.zeros(1, dtype=torch.bool)))
        row = {
            "hidden_states": pack.aux[start : stop - 1],
            "input_ids": pack.ids[start + 1 : stop],
            "verifier_last_hidden_states": pack.last[start + 1 : stop],
            "loss_mask": after,
            "document_ids": torch.full((stop - start - 1,), number),
            "position_ids": torch.arange(stop - start - 1),
        }
        for name, tensor in row.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(tensors)[None] for name, tensors in parts.items()}


def test_eagle3_equals_speculators(tiny_target: Target) -> None:
    """Logits of every step, loss and gradients; the mask and the normalization are set alike."""
    model, ends = random_model(tiny_target)
    pack = random_pack(model, [14, 19], [(7, 12), (8, 17)])
    objective = Eagle3Objective(model, ends, STEPS, DECAY)
    inside = model.t2d[objective.best(pack)]
    peer = speculators_model(model, ends)
    seen: list[torch.Tensor] = []
    peer.lm_head.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    batch = shifted(pack, inside)
    config = {"soft": (soft_cross_entropy, 1.0)}
    _, their_loss, _ = peer(**batch, ttt_steps=STEPS, ttt_step_loss_decay=DECAY, loss_config=config)

    at = places(pack, STEPS)
    outputs = unroll(model, ends.embedding, pack, at, STEPS)
    moved = at.queries - torch.searchsorted(torch.tensor([stop for _, stop in pack.bounds]), at.queries, right=True)
    for step, theirs in enumerate(seen):
        for q, (place, there) in enumerate(zip(at.queries.tolist(), moved.tolist(), strict=True)):
            stop = next(stop for start, stop in pack.bounds if start <= place < stop)
            if place + 2 + step < stop:
                assert torch.allclose(model.logits(outputs[step][q]), theirs[there], atol=1e-4), (step, place)

    loss, _ = objective(pack)
    ours = loss / objective.count(pack)
    assert float(ours.detach()) == pytest.approx(float(their_loss.detach()), abs=1e-4)
    ours.backward()
    their_loss.backward()
    theirs_by_name = dict(peer.named_parameters())
    for name, parameter in model.named_parameters():
        other = theirs_by_name[name.replace("midlayer.", "layers.0.")]
        assert parameter.grad is not None and other.grad is not None
        assert torch.allclose(parameter.grad, other.grad, atol=1e-4), name


def test_export_loads_in_speculators(tmp_path: Path, tiny_target: Target) -> None:
    model = trained(tmp_path / "t", tiny_target, EAGLE3)
    assert isinstance(model, Eagle3)
    export(tmp_path / "t", tmp_path / "e", "float32")
    _, ends = random_model(tiny_target)
    peer = speculators_model(model, ends)
    torch.nn.init.zeros_(peer.fc.weight)
    report = peer.load_state_dict(renamed(load_file(tmp_path / "e" / "model.safetensors")), strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) <= {"embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"}
    pack = random_pack(model, [12], [(4, 12)])
    seen: list[torch.Tensor] = []
    peer.lm_head.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    with torch.no_grad():
        batch = shifted(pack, torch.ones(len(pack.predicted), dtype=torch.bool))
        peer(
            **{name: batch[name] for name in ("hidden_states", "input_ids", "document_ids", "position_ids")},
            ttt_steps=1,
        )
        at = places(pack, 1)
        ours = model.logits(unroll(model, ends.embedding, pack, at, 1)[0])
    assert torch.allclose(seen[0][at.queries], ours, atol=1e-4)


def specforge_model(model: DFlash, ends: Ends, anchors: int, gamma: float) -> Any:
    """SpecForge's DFlash with our weights, and its loss."""
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel
    from transformers import Qwen3Config

    arch = model.arch
    config = Qwen3Config(
        hidden_size=arch.hidden_size,
        intermediate_size=arch.intermediate_size,
        num_attention_heads=arch.num_attention_heads,
        num_key_value_heads=arch.num_key_value_heads,
        head_dim=arch.head_dim,
        num_hidden_layers=arch.num_layers,
        rms_norm_eps=arch.rms_norm_eps,
        vocab_size=arch.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
        block_size=arch.block_size,
        num_target_layers=arch.target_layers,
        layer_types=["full_attention"] * arch.num_layers,
        dflash_config={"mask_token_id": arch.mask_token_id, "target_layer_ids": to_block_outputs(arch.layers)},
    )
    config._attn_implementation = "sdpa"
    peer = DFlashDraftModel(config).float()
    assert not peer.load_state_dict(model.state_dict(), strict=False).unexpected_keys
    head = torch.nn.Linear(arch.hidden_size, arch.vocab_size, bias=False).requires_grad_(False)
    embedding = torch.nn.Embedding(arch.vocab_size, arch.hidden_size).requires_grad_(False)
    with torch.no_grad():
        head.weight.copy_(ends.head)
        embedding.weight.copy_(ends.embedding)
    return OnlineDFlashModel(
        peer, head, embedding, arch.mask_token_id, arch.block_size, "sdpa", num_anchors=anchors, loss_decay_gamma=gamma
    )


def test_dflash_equals_specforge(tiny_target: Target) -> None:
    """Outputs, loss and gradients for the same anchors."""
    settings = Drafter(kind="dflash", layers=[2, 4, 5], num_layers=2, block_size=4, gamma=3.0)
    arch = resolve(settings, shape(tiny_target), tiny_target.mask_token_id)
    model = new_dflash(arch, 1)
    torch.manual_seed(2)
    table = torch.randn(arch.vocab_size, arch.hidden_size)
    ends = Ends(embedding=table, norm=torch.ones(arch.hidden_size), head=torch.randn_like(table), eps=1e-5)
    wrapper = specforge_model(model, ends, anchors=100, gamma=3.0)
    peer = wrapper.draft_model
    pack = random_pack(model, [20], [(6, 20)])  # type: ignore[arg-type]
    mask = torch.zeros(1, 20)
    mask[0, 6:] = 1
    anchors = torch.arange(6, 19)
    outputs: list[torch.Tensor] = []
    peer.register_forward_hook(lambda _, __, output: outputs.append(output))
    their_loss, _, _ = wrapper(pack.ids[None], pack.aux[None], mask)
    with torch.no_grad():
        ours = fill(model, ends.embedding, pack, blocks(pack, anchors, 4, 3.0))
    assert torch.allclose(outputs[0].view_as(ours), ours, atol=1e-4)

    objective = DFlashObjective(model, ends, anchors=10_000, gamma=3.0, seed=0)
    loss, _ = objective(pack, 0)
    loss = loss / objective.count(pack, 0)
    assert float(loss.detach()) == pytest.approx(float(their_loss.detach()), abs=1e-4)
    loss.backward()
    their_loss.backward()
    for name, parameter in model.named_parameters():
        other = peer.get_parameter(name)
        assert parameter.grad is not None and other.grad is not None
        assert torch.allclose(parameter.grad, other.grad, atol=1e-4), name
