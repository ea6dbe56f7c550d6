"""What is sent to an engine and what comes back, and the identity both hang on.

A store key is the digest of the target's revision, the engine's identity, the template, the sampling
parameters and the prompt (token ids, or messages and tools for a chat endpoint). The length limit is not
part of it: see `store`. The engine's name is not either: the same weights in the same precision answer
alike in SGLang, vLLM and transformers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from draftmill.files import canonical, digest
from draftmill.generate.dialogue import Dialogue, Message
from draftmill.generate.settings import Engine, Sampling

if TYPE_CHECKING:
    from draftmill.target import Renderer, Target

Finish = Literal["stop", "length", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt for the target."""

    key: str
    """32 hex digits."""
    limit: int
    """At most so many new tokens."""
    prompt_ids: list[int]
    """The rendered prompt; what an engine with exact tokens is sent."""
    messages: list[Message]
    """What a chat endpoint is sent."""
    tools: list[Any] | None = None

    @property
    def seed(self) -> int:
        """Seed of this request's draws, in [0, 2**31): answers do not depend on what is decoded beside it."""
        return int(self.key[:8], 16) >> 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came back, as the engine said it."""

    finish: Finish
    limit: int
    """The length limit it was asked with."""
    engine: str
    """Engine name; for a routed endpoint `openai:<provider>`."""
    output_ids: list[int] | None = None
    """Exact ids with the end-of-turn id, or None where the server gives text only."""
    text: str | None = None
    message: Message | None = None
    """The assistant turn of a chat endpoint."""
    usage: dict[str, Any] = dataclasses.field(default_factory=dict)
    """prompt_tokens, completion_tokens, and cost (US dollars) where it is known."""

    def within(self, limit: int) -> Answer:
        """The answer that a lower limit would have given: the same tokens, cut."""
        if self.output_ids is None or len(self.output_ids) <= limit:
            return self
        usage = {**self.usage, "completion_tokens": limit}
        return dataclasses.replace(
            self, finish="length", limit=limit, output_ids=self.output_ids[:limit], text=None, usage=usage
        )

    @property
    def tokens(self) -> int:
        """Length in tokens, as far as it is known."""
        return len(self.output_ids) if self.output_ids is not None else int(self.usage.get("completion_tokens", 0))


class RowError(Exception):
    """One row gets no answer; `reason` is its counter, the text says more (a server's own words)."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Prompter:
    """Makes requests for one target, engine and sampling."""

    def __init__(self, target: Target, engine: Engine, sampling: Sampling, renderer: Renderer) -> None:
        self.sampling, self._renderer, self._max_len = sampling, renderer, target.max_seq_len
        self._chat = engine.name == "openai"
        self.identity = identity(target, engine, sampling, renderer.digest)

    def request(self, dialogue: Dialogue, *, retry: bool = False) -> Request | None:
        """The request for what the target is to say next; None if the prompt leaves no room in the context.

        Raises RowError where the template refuses the conversation.
        """
        from draftmill.target import RenderError

        try:
            ids = self._renderer.prompt_ids(dialogue.said, dialogue.tools)
        except RenderError as error:
            raise RowError("template", error.message) from None
        asked = self.sampling.retry_max_new_tokens if retry else None
        limit = min(asked or self.sampling.max_new_tokens, self._max_len - len(ids))
        if limit < 1:
            return None
        content = canonical([dialogue.said, dialogue.tools]) if self._chat else _packed(ids)
        key = hashlib.sha256(self.identity.encode() + b"\x00" + content).hexdigest()[:32]
        return Request(key=key, limit=limit, prompt_ids=ids, messages=list(dialogue.said), tools=dialogue.tools)


def identity(target: Target, engine: Engine, sampling: Sampling, template_digest: str) -> str:
    """Digest of all that answers depend on besides the prompt and the length limit."""
    from draftmill.target import weights_digest

    greedy = sampling.temperature == 0
    drawn = None if greedy else [sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed]
    return digest([weights_digest(target), dataclasses.asdict(engine.identity), template_digest, drawn])


def _packed(ids: list[int]) -> bytes:
    from array import array

    return array("i", ids).tobytes()
