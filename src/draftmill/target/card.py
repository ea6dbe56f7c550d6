"""What rendering and encoding need of a tokenizer folder, read once with transformers and kept.

Importing transformers takes seconds, which a stage that only tokenizes need not pay each time: the first use
keeps the Rust tokenizer as transformers set it up, the template and the special tokens; later uses read these.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftmill.errors import ConfigError
from draftmill.files import digest, write_json, write_text
from draftmill.workspace import keep

# Weights are no part of a tokenizer; everything else that a tokenizer class may read is.
_TOKENIZER_FILES = (".json", ".model", ".jinja", ".txt", ".tiktoken", ".py")
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A tokenizer folder's facts."""

    fast: bool  # a Rust tokenizer; its file stands beside the card
    renders_itself: bool  # apply_chat_template is Python code of the tokenizer's class
    template: str | None  # the folder's own chat template
    variables: dict[str, str]  # bos_token, eos_token, … as templates see them
    special_tokens: list[str]  # texts that become one special id
    eos_ids: list[int]  # the ids that end generation
    digest: str  # of the tokenizer's files


def read_card(folder: Path, trust_remote_code: bool) -> tuple[Card, Path]:
    """The card of a tokenizer folder and the path where its Rust tokenizer is kept.

    Raises ConfigError if the folder has no usable tokenizer.
    """
    key = files_digest(folder)
    place = keep("targets", "cards", key)
    if not (place / "card.json").exists():
        card, backend = _inspect(folder, trust_remote_code, key)
        store_card(card, backend)
    loaded = json.loads((place / "card.json").read_text(encoding="utf-8"))
    return Card(**loaded), place / "tokenizer.json"


def store_card(card: Card, backend: str | None) -> None:
    """Keep a card and the JSON of its Rust tokenizer; the card last, so that its presence means done."""
    place = keep("targets", "cards", card.digest)
    if backend is not None:
        write_text(place / "tokenizer.json", backend)
    write_json(place / "card.json", dataclasses.asdict(card))


def files_digest(folder: Path) -> str:
    """Of the names and bytes of a folder's tokenizer files. Raises ConfigError if there are none."""
    files = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in _TOKENIZER_FILES and not path.name.endswith(".index.json") and path.is_file()
    )
    if not files:
        raise ConfigError("no tokenizer here", file=folder, fix="name a folder with tokenizer files in target.source")
    return digest([_FORMAT, [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]])


def _inspect(folder: Path, trust_remote_code: bool, key: str) -> tuple[Card, str | None]:
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"transformers cannot load this tokenizer: {error}", file=folder) from None
    added = tokenizer.added_tokens_decoder.values()
    specials = {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)
    card = Card(
        fast=bool(tokenizer.is_fast),
        renders_itself=type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template,
        template=_own_template(tokenizer),
        variables={name: str(text) for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)},
        special_tokens=sorted(specials),
        eos_ids=_eos_ids(folder, tokenizer.eos_token_id),
        digest=key,
    )
    return card, tokenizer.backend_tokenizer.to_str() if card.fast else None


def _own_template(tokenizer: Any) -> str | None:
    template = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def _eos_ids(folder: Path, own: int | None) -> list[int]:
    """The tokenizer's eos id and those of generation_config.json, which servers stop at too."""
    path = folder / "generation_config.json"
    listed = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
    ids = {own, *(listed if isinstance(listed, list) else [listed])}
    return sorted(eos for eos in ids if eos is not None)
