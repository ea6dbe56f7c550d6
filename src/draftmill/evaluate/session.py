"""The target during decoding: live with a KV cache, or replayed from a recording of its own plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor

from draftmill.hidden_states.capture import blocks


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target says after each of n tokens: best next token [n], logits [n, V] fp32, aux states [n, L·H].

    A replay has no logits.
    """

    best: list[int]
    logits: Tensor | None
    aux: Tensor


class Session(Protocol):
    """The target's side of a decoding."""

    def begin(self, prompt: Sequence[int]) -> Verified:
        """Forget everything, read the prompt; `best` and `logits` are of its last token only."""

    def verify(self, tokens: Sequence[int]) -> Verified:
        """Read further tokens."""

    def keep(self, count: int) -> None:
        """Of the tokens read last, keep the first `count`."""


class Live:
    """The model itself. `layers` are the hidden_states indices whose states are returned, in that order."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self.model, self.layers = model, tuple(layers)
        self.device = next(model.parameters()).device
        self._seen: dict[int, Tensor] = {}
        self._handles = [blocks(model)[layer - 1].register_forward_hook(self._hook(layer)) for layer in self.layers]
        # transformers renamed the argument in 5.24.
        self._cache_name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self._cache: Any = None
        self._length = self._read = 0

    def _hook(self, layer: int) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            self._seen[layer] = output if isinstance(output, Tensor) else output[0]

        return hook

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def begin(self, prompt: Sequence[int]) -> Verified:
        from transformers import DynamicCache

        self._cache, self._length, self._read = DynamicCache(config=self.model.config), 0, 0
        return self._forward(prompt, logits_to_keep=1)

    def verify(self, tokens: Sequence[int]) -> Verified:
        return self._forward(tokens)

    def keep(self, count: int) -> None:
        if count < self._read:
            self._cache.crop(count - self._read)  # negative: so many tokens from the end
            self._length -= self._read - count
        self._read = count

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int], **options: Any) -> Verified:
        ids = torch.tensor([list(tokens)], device=self.device)
        options[self._cache_name] = self._cache
        logits = self.model(input_ids=ids, use_cache=True, **options).logits[0].float()
        self._length, self._read = self._length + len(tokens), len(tokens)
        aux = [self._seen[layer][0] for layer in self.layers]
        states = torch.cat(aux, dim=-1).float() if aux else logits.new_empty(len(tokens), 0)
        return Verified(logits.argmax(-1).tolist(), logits, states)

    @torch.inference_mode()
    def disagreement(
        self, prompt: Sequence[int], answer: Sequence[int], force: int | None = None
    ) -> tuple[int | None, float]:
        """The first answer token that one parallel pass over the text would choose otherwise, and by how much.

        The distance is that of the two best logits at this place (at `force`, if given). (None, 0.0) if every
        token is the model's own best.
        """
        ids = torch.tensor([[*prompt, *answer[:-1]]], device=self.device)
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=len(answer)).logits[0].float()
        wrong = (logits.argmax(-1).cpu() != torch.tensor(answer)).nonzero().flatten().tolist()
        place = force if force is not None else (wrong[0] if wrong else None)
        if place is None:
            return None, 0.0
        first, second = logits[place].topk(2).values.tolist()
        return place, first - second


@dataclass(slots=True)
class Recording:
    """A prompt, the target's greedy answer, and its aux states [T, L·H] at all of these tokens but the last."""

    prompt: list[int]
    answer: list[int]
    aux: Tensor


class Replay:
    """Greedy decoding without the model: where a draft agrees with the recording the target would accept it, and
    where it does not the target would say what is recorded. Exact for greedy decoding, and nearly free."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._length = self._read = 0

    def begin(self, prompt: Sequence[int]) -> Verified:
        """`prompt` must be the recorded one."""
        assert list(prompt) == self.recording.prompt
        self._length = self._read = len(prompt)
        return Verified([self.recording.answer[0]], None, self.recording.aux[: len(prompt)])

    def verify(self, tokens: Sequence[int]) -> Verified:
        start = self._length - len(self.recording.prompt)
        best = self.recording.answer[start + 1 : start + 1 + len(tokens)]
        aux = self.recording.aux[self._length : self._length + len(tokens)]
        self._length, self._read = self._length + len(tokens), len(tokens)
        return Verified(best + [-1] * (len(tokens) - len(best)), None, aux)

    def keep(self, count: int) -> None:
        self._length -= self._read - count
        self._read = count
