"""config.json as SGLang and vLLM read it, and the tensors each kind of drafter must have.

Field by field from SGLang 0.5.23 (models/llama_eagle3.py, dflash), vLLM (model_executor/models/llama_eagle3.py,
v1/spec_decode) and transformers 5: what one of them ignores another one needs.
"""

from __future__ import annotations

from typing import Any

from draftmill.drafters.architecture import Architecture
from draftmill.drafters.layers import to_block_outputs, to_boundaries

EAGLE3, DFLASH = "LlamaForCausalLMEagle3", "DFlashDraftModel"
Shapes = dict[str, tuple[int, ...]]


def config_of(arch: Architecture, dtype: str) -> dict[str, Any]:
    """config.json of an exported drafter; dtype is float32 or bfloat16."""
    eos = list(arch.eos_token_ids)
    common = {
        "hidden_size": arch.hidden_size,
        "intermediate_size": arch.intermediate_size,
        "num_attention_heads": arch.num_attention_heads,
        "num_key_value_heads": arch.num_key_value_heads,
        "head_dim": arch.head_dim,
        "num_hidden_layers": arch.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": arch.rms_norm_eps,
        "max_position_embeddings": arch.max_position_embeddings,
        # Older servers read the first two, transformers 5 the last.
        "rope_theta": arch.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": arch.rope_theta},
        "vocab_size": arch.vocab_size,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "dtype": dtype,
        "torch_dtype": dtype,
        "bos_token_id": arch.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": arch.pad_token_id,
        "use_cache": True,  # null breaks strict readers
    }
    return common | (_eagle3(arch) if arch.kind == "eagle3" else _dflash(arch))


def _eagle3(arch: Architecture) -> dict[str, Any]:
    return {
        "architectures": [EAGLE3],
        "model_type": "llama",
        "mlp_bias": False,
        "draft_vocab_size": arch.draft_vocab_size,
        # One name, two meanings: SGLang reads the nested list, vLLM the other (drafters.layers).
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": to_block_outputs(arch.layers),
            "use_aux_hidden_state": True,
        },
        "eagle_aux_hidden_state_layer_ids": to_boundaries(arch.layers),
    }


def _dflash(arch: Architecture) -> dict[str, Any]:
    return {
        "architectures": [DFLASH],
        "model_type": "qwen3",
        "block_size": arch.block_size,
        "num_target_layers": arch.target_layers,
        "layer_types": ["full_attention"] * arch.num_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": arch.num_layers,
        "dflash_config": {"mask_token_id": arch.mask_token_id, "target_layer_ids": to_block_outputs(arch.layers)},
    }


def shapes_of(config: dict[str, Any]) -> Shapes:
    """Every tensor that the loaders look for, with its shape, from a config.json.

    Raises KeyError for a missing size.
    """
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    size = config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    target = config.get("target_hidden_size") or hidden
    if config["architectures"] == [EAGLE3]:
        shapes = _layer("midlayer.", hidden, 2 * hidden, queries, keys, ffn)
        shapes |= {"midlayer.hidden_norm.weight": (hidden,), "fc.weight": (hidden, 3 * target)}
        shapes |= {"lm_head.weight": (config["draft_vocab_size"], hidden), "norm.weight": (hidden,)}
        return shapes | {"d2t": (config["draft_vocab_size"],), "t2d": (config["vocab_size"],)}
    layers = len(config["dflash_config"]["target_layer_ids"])
    shapes = {"fc.weight": (hidden, layers * target), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= _layer(f"layers.{i}.", hidden, hidden, queries, keys, ffn)
        shapes |= {f"layers.{i}.self_attn.{which}_norm.weight": (size,) for which in "qk"}
    return shapes


def _layer(prefix: str, hidden: int, width: int, queries: int, keys: int, ffn: int) -> Shapes:
    inner: Shapes = {
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    return {prefix + name: shape for name, shape in inner.items()}
