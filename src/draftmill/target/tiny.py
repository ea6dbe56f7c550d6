"""A randomly initialized Llama with a byte-level tokenizer and ChatML markers, the same bytes everywhere.

Neither torch nor transformers is needed to make it; both load it as any other model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from draftmill.files import write_json
from draftmill.target.card import Card, files_digest, store_card
from draftmill.target.config import RandomModel

END = "<|im_end|>"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", END, "<|mask|>")
PLAIN_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # single ids, yet ordinary text
CONTEXT = 4096  # tokens
_PAD_ID, _END_ID = 256, 256 + SPECIAL_TOKENS.index(END)


def byte_tokenizer() -> Tokenizer:
    """One token a byte (ids 0 to 255), then SPECIAL_TOKENS and PLAIN_TOKENS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in PLAIN_TOKENS])
    return tokenizer


def make_random(wanted: RandomModel, folder: Path) -> None:
    """Write config, weights (normal, deviation 0.02, norms 1) and tokenizer of the random model to `folder`."""
    tokenizer = byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": SPECIAL_TOKENS[0]}
        | {"model_max_length": CONTEXT, "clean_up_tokenization_spaces": False},
    )
    vocabulary = tokenizer.get_vocab_size()
    write_json(folder / "config.json", _config(wanted, vocabulary))
    write_json(folder / "generation_config.json", {"eos_token_id": _END_ID, "pad_token_id": _PAD_ID})
    generator = np.random.Generator(np.random.PCG64(wanted.seed))
    weights = {
        name: np.ones(size, np.float32)
        if len(size) == 1
        else generator.standard_normal(size, np.float32) * np.float32(0.02)
        for name, size in _sizes(wanted, vocabulary)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    store_card(_card(tokenizer, files_digest(folder)), tokenizer.to_str())


def _card(tokenizer: Tokenizer, key: str) -> Card:
    """What reading the folder with transformers would give, without its seconds of import."""
    return Card(
        fast=True,
        renders_itself=False,
        template=None,
        variables={"eos_token": END, "pad_token": SPECIAL_TOKENS[0]},
        special_tokens=sorted(SPECIAL_TOKENS),
        eos_ids=[_END_ID],
        digest=key,
    )


def _config(wanted: RandomModel, vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": wanted.hidden_size,
        "intermediate_size": wanted.intermediate_size,
        "num_hidden_layers": wanted.num_hidden_layers,
        "num_attention_heads": wanted.num_attention_heads,
        "num_key_value_heads": wanted.num_key_value_heads,
        "head_dim": wanted.hidden_size // wanted.num_attention_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": CONTEXT,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": _END_ID,
        "pad_token_id": _PAD_ID,
        "dtype": "float32",
    }


def _sizes(wanted: RandomModel, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a Llama, in the order in which they are drawn."""
    hidden, inner = wanted.hidden_size, wanted.intermediate_size
    keys = hidden // wanted.num_attention_heads * wanted.num_key_value_heads
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(wanted.num_hidden_layers):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (hidden,)
        for projection, rows in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            yield f"{name}.self_attn.{projection}_proj.weight", (rows, hidden)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
        yield f"{name}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{name}.mlp.up_proj.weight", (inner, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)
