"""Text pieces to token ids and back, with the special tokens of the template apart from those of strangers.

A conversation is encoded in pieces, cut where the target starts and stops writing: no token straddles a cut, as
in serving. Pieces after the first get no leading blank from tokenizers that would add one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from draftmill.target.card import Card


class Piece(NamedTuple):
    """A stretch of a rendered conversation."""

    text: str
    first: bool = False  # at the conversation's beginning
    plain: bool = False  # special tokens in it are ordinary text


class Encoder:
    """The target's tokenizer: the Rust one where there is one, else the Python one."""

    def __init__(self, card: Card, backend: Path, load: Callable[[], Any]) -> None:
        self._load_tokenizer = load
        self._source = backend.read_text(encoding="utf-8") if card.fast else None

    def encode(self, pieces: Sequence[Piece]) -> list[list[int]]:
        """The ids of each piece; one batch for the tokenizer."""
        ids: list[list[int]] = [[]] * len(pieces)
        for kind in {(piece.first, piece.plain) for piece in pieces}:
            chosen = [i for i, piece in enumerate(pieces) if (piece.first, piece.plain) == kind]
            for i, encoded in zip(chosen, self._encode([pieces[i].text for i in chosen], *kind), strict=True):
                ids[i] = encoded
        return ids

    def _encode(self, texts: list[str], first: bool, plain: bool) -> list[list[int]]:
        if self._source is None:
            return [self._encode_slowly(text, plain) for text in texts]
        backend = self._plain if plain else self._first if first else self._rest
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _encode_slowly(self, text: str, plain: bool) -> list[int]:
        # Python tokenizers differ in how they are told to leave special tokens alone; none finds one cut in two.
        parts = [text[:1], text[1:]] if plain else [text]
        return [i for part in parts for i in self.tokenizer.encode(part, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included; incomplete characters become U+FFFD."""
        if self._source is None:
            return str(self.tokenizer.decode(ids, skip_special_tokens=False))
        return str(self._first.decode(ids, skip_special_tokens=False))

    def normalize(self, text: str) -> str:
        """`text` as the tokenizer sees it (Unicode normalization and the like)."""
        normalizer = self._rest.normalizer if self._source is not None else None
        return str(normalizer.normalize_str(text)) if normalizer is not None else text

    def id_of(self, text: str) -> int | None:
        """The id of a token's text, None if there is no such token."""
        if self._source is not None:
            found: int | None = self._first.token_to_id(text)
            return found
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def token_bytes(self) -> Mapping[int, bytes] | None:
        """UTF-8 bytes of every id where tokens are bytes (byte-level BPE), so that joining decodes; else None."""
        if self._source is None or json.loads(self._first.decoder.__getstate__())["type"] != "ByteLevel":
            return None
        return _TokenBytes(self._first)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer as transformers loads it (seconds)."""
        return self._load_tokenizer()

    @cached_property
    def _first(self) -> Any:
        return _backend(self._source or "")

    @cached_property
    def _rest(self) -> Any:
        source = _without_prefix(self._source or "")
        return self._first if source == self._source else _backend(source)

    @cached_property
    def _plain(self) -> Any:
        backend = _backend(_without_prefix(self._source or ""))
        backend.encode_special_tokens = True
        return backend


class _TokenBytes(dict[int, bytes]):
    """Filled as ids are asked for: a whole vocabulary would take seconds at every start."""

    def __init__(self, backend: Any) -> None:
        added = backend.get_added_tokens_decoder().items()
        super().__init__({i: token.content.encode() for i, token in added})
        self._token_of = backend.id_to_token
        self._bytes = str.maketrans({char: chr(byte) for char, byte in byte_of_char().items()})

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id) or ""
        self[token_id] = found = token.translate(self._bytes).encode("latin-1", "replace")
        return found


def _backend(source: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(source)


def _without_prefix(source: str) -> str:
    """The tokenizer's JSON without whatever puts a blank before a text; the same text if nothing does."""
    if not any(key in source for key in ('"Prepend"', '"prepend_scheme"', '"add_prefix_space":true', '": true')):
        return source
    loaded = json.loads(source)
    changed = {**loaded, **{part: _no_prefix(loaded.get(part)) for part in ("normalizer", "pre_tokenizer")}}
    return source if changed == loaded else json.dumps(changed, ensure_ascii=False)


def _no_prefix(part: Any) -> Any:
    if isinstance(part, list):
        return [_no_prefix(item) for item in part if not (isinstance(item, dict) and item.get("type") == "Prepend")]
    if not isinstance(part, dict):
        return part
    part = {key: _no_prefix(value) for key, value in part.items()}
    if part.get("type") == "Prepend":
        return None
    if part.get("prepend_scheme"):
        part["prepend_scheme"] = "never"
    if part.get("add_prefix_space"):
        part["add_prefix_space"] = False
    return part


def byte_of_char() -> dict[str, int]:
    """The printable characters that byte-level BPE (GPT-2) writes bytes as, and the byte of each."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
