"""The rules by which SGLang and vLLM load a drafter, checked on a directory from anybody.

SGLang skips unknown tensor names without a word and vLLM fails on them; a wrong layer id or an absolute d2t
loads everywhere and accepts nothing. Each rule is one function that yields what it finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftmill.drafters.layers import default_layers
from draftmill.errors import UsageError, nearest
from draftmill.export.layout import DFLASH, EAGLE3, shapes_of

REQUIRED = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_hidden_layers", "vocab_size", "rms_norm_eps", "max_position_embeddings"),
)
OPTIONAL = {"t2d", "embed_tokens.weight"}
EAGLE_IDS, FIRST_LAYER = "eagle_aux_hidden_state_layer_ids", "layers.0."


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule; not `fatal`: a server loads it all the same, but look at it."""

    message: str
    fix: str
    fatal: bool = True


@dataclass(slots=True)
class Checkpoint:
    """A directory's config.json and tensors, and what is known of the target."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    vocab_size: int | None = None
    target_layers: int | None = None
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = "eagle3" if self.config.get("architectures") == [EAGLE3] else "dflash"


def lint(folder: Path, vocab_size: int | None = None, target_layers: int | None = None) -> list[Finding]:
    """Every broken rule of the drafter in `folder`. `vocab_size` and `target_layers` are the target's, if known.

    Raises UsageError if it is not a drafter's directory at all.
    """
    config = _read_config(folder)
    if config.get("architectures") not in ([EAGLE3], [DFLASH]):
        found = config.get("architectures")
        return [
            Finding(
                f"config.json: architectures must be [{EAGLE3!r}] or [{DFLASH!r}], not {found}", "write one of the two"
            )
        ]
    missing = [name for name in REQUIRED if config.get(name) is None]
    if missing:
        return [Finding(f"config.json: {', '.join(missing)} missing", "write them: servers do not guess")]
    try:
        tensors = _read_tensors(folder)
    except SafetensorError as error:
        return [Finding(f"model.safetensors cannot be read: {error}", "export or fetch it again")]
    made = Checkpoint(config, tensors, vocab_size, target_layers or config.get("num_target_layers"))
    rules = (_rope, _plain_fields, _names_and_shapes, _values)
    own = (_eagle3_ids, _vocabulary_map) if made.kind == "eagle3" else (_dflash_ids, _mask_token)
    return [finding for rule in (*rules, *own) for finding in rule(made)]


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise UsageError("not a drafter's directory: no config.json", file=folder)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", file=path) from None
    if not isinstance(config, dict):
        raise UsageError("not a JSON object", file=path)
    return config


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError("no *.safetensors here", file=folder)
    tensors: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    return tensors


def _rope(made: Checkpoint) -> Iterator[Finding]:
    old, new = made.config.get("rope_theta"), (made.config.get("rope_parameters") or {}).get("rope_theta")
    both = "write the base frequency that the drafter was trained with, the same in both places"
    if old is None:
        yield Finding("config.json: rope_theta is missing; servers before transformers 5 then assume 10000", both)
    if new is None:
        yield Finding("config.json: rope_parameters.rope_theta is missing; transformers 5 then assumes 10000", both)
    if None not in (old, new) and old != new:
        yield Finding(f"config.json: rope_theta is {old}, but rope_parameters.rope_theta {new}", both)


def _plain_fields(made: Checkpoint) -> Iterator[Finding]:
    config = made.config
    if config.get("tie_word_embeddings") is not False:
        yield Finding(
            "config.json: tie_word_embeddings must be false: the head would be replaced by the embedding", "write false"
        )
    if config.get("use_cache", True) is None:
        yield Finding("config.json: use_cache is null, which strict readers refuse", "write true")
    if config.get("dtype") is None and config.get("torch_dtype") is None:
        yield Finding("config.json: neither dtype nor torch_dtype", "write dtype, such as bfloat16")
    if made.vocab_size is not None and config["vocab_size"] != made.vocab_size:
        yield Finding(
            f"config.json: vocab_size is {config['vocab_size']}, but the target's {made.vocab_size}",
            "check --target; a drafter fits one target",
        )
    want = {"eagle3": "llama", "dflash": "qwen3"}[made.kind]
    if config.get("model_type") != want:
        yield Finding(f"config.json: model_type must be '{want}', not {config.get('model_type')!r}", f"write {want}")


def _names_and_shapes(made: Checkpoint) -> Iterator[Finding]:
    try:
        wanted = shapes_of(made.config)
    except (KeyError, TypeError) as error:
        yield Finding(f"config.json: {error} is missing or wrong", "write it as a number")
        return
    present = {_canonical(made, name): tensor for name, tensor in made.tensors.items()}
    extra = sorted(present.keys() - wanted.keys() - OPTIONAL)
    for name in sorted(wanted.keys() - present.keys() - OPTIONAL):
        close = nearest(name, extra)
        like = f"; '{close}' looks like it, renamed" if close else ""
        yield Finding(f"tensor {name} is missing{like}", "rename it back" if close else "export it again")
    for name in extra:
        yield Finding(
            f"tensor {name} is unknown: vLLM fails on it, SGLang skips it without a word", "rename it, or leave it out"
        )
    for name in sorted(wanted.keys() & present.keys()):
        shape = tuple(present[name].shape)
        if shape != wanted[name]:
            message = f"tensor {name} has shape {list(shape)}, but config.json says {list(wanted[name])}"
            yield Finding(message, "use the config.json that belongs to these tensors")


def _canonical(made: Checkpoint, name: str) -> str:
    """Both loaders take `layers.0.` for `midlayer.`."""
    if made.kind == "eagle3" and name.startswith(FIRST_LAYER):
        return "midlayer." + name.removeprefix(FIRST_LAYER)
    return name


def _values(made: Checkpoint) -> Iterator[Finding]:
    for name, tensor in sorted(made.tensors.items()):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            yield Finding(f"tensor {name} has NaN or infinite values", "train again from an earlier checkpoint")


def _eagle3_ids(made: Checkpoint) -> Iterator[Finding]:
    nested = (made.config.get("eagle_config") or {}).get(EAGLE_IDS)
    top = made.config.get(EAGLE_IDS)
    for value, where, reader in ((nested, f"eagle_config.{EAGLE_IDS}", "SGLang"), (top, EAGLE_IDS, "vLLM")):
        if value is None:
            message = f"config.json: {where} is missing; {reader} then assumes [2, n/2, n-3]"
            yield Finding(message, "write the layers it was trained on", fatal=made_for_others(made))
        elif not (isinstance(value, list) and len(value) == 3 and all(isinstance(i, int) for i in value)):
            yield Finding(
                f"config.json: {where} must be three numbers, not {value}", "write the layers it was trained on"
            )
            return
    if nested is not None and top is not None and [i + 1 for i in nested] != top:
        right = [i + 1 for i in nested]
        yield Finding(
            f"config.json: off by one: SGLang reads eagle_config.{EAGLE_IDS} {nested} as outputs of blocks, so vLLM's "
            f"{EAGLE_IDS}, which count from the embedding, must be {right}, not {top}",
            f"write {right}",
        )
    layers = [i + 1 for i in nested] if nested is not None else top
    yield from _against_default(made, layers, f"eagle_config.{EAGLE_IDS}")


def made_for_others(made: Checkpoint) -> bool:
    """Whether a missing id list matters: the list that is there is not what both servers assume."""
    ids = made.config.get(EAGLE_IDS)
    nested = (made.config.get("eagle_config") or {}).get(EAGLE_IDS)
    layers = ids if ids is not None else [i + 1 for i in nested] if isinstance(nested, list) else None
    if layers is None or made.target_layers is None:
        return layers is not None
    return tuple(layers) != default_layers("eagle3", made.target_layers)


def _dflash_ids(made: Checkpoint) -> Iterator[Finding]:
    ids = (made.config.get("dflash_config") or {}).get("target_layer_ids")
    if not (isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids)):
        yield Finding(
            f"config.json: dflash_config.target_layer_ids must be a list of numbers, not {ids}",
            "write the layers it was trained on",
        )
        return
    if EAGLE_IDS in made.config:
        yield Finding(f"config.json: {EAGLE_IDS} must not be there: vLLM would read it instead, and raw", "remove it")
    if len(made.config.get("layer_types") or []) != made.config["num_hidden_layers"]:
        yield Finding("config.json: layer_types must have one entry a layer", "write as many as num_hidden_layers")
    if made.target_layers is None:
        yield Finding(
            "config.json: num_target_layers is missing", "write the target's num_hidden_layers, or name --target"
        )
        return
    if ids[-1] == made.target_layers - 1:
        message = "the target's last layer is among those read; servers may give it after the final norm"
        yield Finding(message, "train on lower layers if it accepts little", fatal=False)
    yield from _against_default(made, [i + 1 for i in ids], "dflash_config.target_layer_ids")


def _against_default(made: Checkpoint, layers: list[int] | None, where: str) -> Iterator[Finding]:
    """Ids outside the target, and ids that are the default set counted by the other convention."""
    if layers is None or made.target_layers is None:
        return
    if min(layers) < 1 or max(layers) > made.target_layers:
        yield Finding(f"config.json: {where} names a block outside the target's {made.target_layers}", "check --target")
        return
    try:
        usual = list(default_layers(made.kind, made.target_layers, len(layers)))
    except ValueError:
        return
    for shift in (1, -1):
        if layers == [i + shift for i in usual]:
            right = [i - 1 for i in usual]
            yield Finding(
                f"config.json: off by one: {where} counts outputs of blocks and must be {right}", f"write {right}"
            )
            return
    if layers != usual:
        yield Finding(
            f"layers {layers} (hidden_states indices) are not the usual {usual}",
            "nothing, if that was meant",
            fatal=False,
        )


def _vocabulary_map(made: Checkpoint) -> Iterator[Finding]:
    d2t = made.tensors.get("d2t")
    if d2t is None:
        return  # reported as a missing tensor
    vocab = made.config["vocab_size"]
    if d2t.dtype != torch.int64:
        yield Finding(f"tensor d2t must be int64, not {d2t.dtype}", "store it as int64")
    ids = d2t.long() + torch.arange(len(d2t))
    if bool((ids < 0).any()) or bool((ids >= vocab).any()) or len(ids.unique()) != len(ids):
        absolute = bool((d2t >= 0).all()) and bool((d2t < vocab).all()) and len(d2t.unique()) == len(d2t)
        kind = "holds absolute ids; it must hold offsets" if absolute else "is no map of ids"
        yield Finding(f"tensor d2t {kind}", "store  d2t[i] = target id - i  for each draft id i")
        return
    t2d = made.tensors.get("t2d")
    if t2d is None:
        yield Finding(
            "tensor t2d is missing; servers do not need it, going on with training does",
            "store it, or nothing",
            fatal=False,
        )
    elif t2d.dtype != torch.bool or len(t2d) != vocab or not torch.equal(t2d.nonzero().squeeze(-1), ids.sort().values):
        yield Finding("tensor t2d does not mark the ids of d2t", "store true at each id  i + d2t[i]")


def _mask_token(made: Checkpoint) -> Iterator[Finding]:
    token = (made.config.get("dflash_config") or {}).get("mask_token_id")
    rows = made.vocab_size or made.config["vocab_size"]
    if not isinstance(token, int) or not 0 <= token < rows:
        yield Finding(
            f"config.json: mask_token_id {token} is beyond the target's embedding of {rows} rows",
            "write the id of an unused row",
        )
