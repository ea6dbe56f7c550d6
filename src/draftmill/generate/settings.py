"""The settings of generate: what makes an answer (engine identity, sampling, policy) and how it is asked for.

`Engine.identity`, `Sampling` and `Policy` change bytes and are parameters of the stage; `GenerateRun`
is the `run.generate` section and changes none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EngineName = Literal["transformers", "sglang", "vllm", "openai"]
Choice = Literal["keep", "drop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What makes two engines give different answers for the same target: part of every store key."""

    dtype: str | None = None
    quantization: str | None = None
    model: str | None = None
    """The name a chat endpoint knows the target by."""
    provider: tuple[str, ...] = ()
    """OpenRouter providers in order of preference; no other may serve."""
    reasoning: str | None = None
    """Reasoning effort asked of a chat endpoint, such as `high`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """US dollars for a million tokens; used where the server's usage names no cost."""

    prompt: float
    completion: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """Who runs the target (conf/engine/<name>.yaml)."""

    name: EngineName
    identity: Identity = field(default_factory=Identity)
    url: str | None = None
    """The endpoint of a public service; servers of one's own stand in `run.generate.urls`."""
    api_key_env: str | None = None
    """The environment variable that holds the key; the key itself is written nowhere."""
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if self.name == "openai" and not self.identity.model:
            raise ValueError("identity.model is missing: the name that the endpoint knows the target by")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What becomes of an answer with a finding: `keep` it with a flag, or `drop` the row with that reason."""

    truncated: Literal["keep", "drop", "retry"] = "keep"
    """The length limit was reached; `retry` asks once more with `Sampling.retry_max_new_tokens`."""
    refused: Choice = "drop"
    """The server's content filter ended the answer."""
    empty: Choice = "drop"
    repetition: Choice = "keep"
    reasoning: Choice = "keep"
    """Reasoning tags that do not balance."""
    tool_calls: Choice = "keep"
    """A call that does not parse, names an unknown tool, or does not fit the tool's JSON Schema."""
    special_tokens: Choice = "keep"
    """A special token of the target inside the text of the answer."""
    usage: Choice = "keep"
    """The server's token counts differ from the tokens it gave."""
    provider: Choice = "drop"
    """A provider served that `engine.identity.provider` does not name."""
    max_failed: float = 0.01
    """The stage fails if a larger share of the asked rows got no answer after all retries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the target's tokens are drawn; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    max_new_tokens: int = 2048
    retry_max_new_tokens: int | None = None
    seed: int = 0
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or (self.top_k is not None and self.top_k < 1):
            raise ValueError("temperature must be at least 0, top_p in (0, 1], top_k at least 1 or null")
        if self.max_new_tokens < 1:
            raise ValueError("max_new_tokens must be at least 1")
        if self.policy.truncated == "retry" and (self.retry_max_new_tokens or 0) <= self.max_new_tokens:
            raise ValueError("policy.truncated: retry needs retry_max_new_tokens above max_new_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRun:
    """Everything that changes no byte of the answers (`run.generate`)."""

    batch_size: int = 32
    """Rows decoded together by the engine in process."""
    batch_tokens: int = 16384
    """At most so many prompt tokens, padding included, in one batch of the engine in process."""
    urls: tuple[str, ...] = ()
    """Servers to attach to; several share the work."""
    served_as: str | None = None
    """The name that servers have for the target, where it is neither the target's nor its source's."""
    launch: bool = False
    """Start a server for the target (sglang, vllm) and keep it for the next dataset."""
    launch_flags: tuple[str, ...] = ()
    launch_python: str | None = None
    """The interpreter of the environment the server is installed in; None: this one."""
    launch_env: dict[str, str] = field(default_factory=dict)
    launch_timeout_s: float = 1800.0
    idle_timeout_s: float = 900.0
    """A launched server that nobody uses for so long is stopped."""
    concurrency: int = 64
    """At most so many requests in flight, over all servers."""
    timeout_s: float = 1800.0
    """A whole request, from sending to the last byte; the server says nothing before the answer is finished."""
    stall_timeout_s: float = 60.0
    """The body of an answer that has begun may take so long to come."""
    patience_s: float = 900.0
    """All servers may be down for so long before the run ends."""
    attempts: int = 8
    """Times a request is tried before its row counts as failed."""
    backoff_s: float = 0.5
    """First wait before a retry; doubled each time, drawn uniformly from zero up, at most `backoff_max_s`."""
    backoff_max_s: float = 60.0
    max_cost_usd: float | None = None
    max_output_tokens: int | None = None
    max_hours: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What `run` says of this machine for every stage."""

    device: str = "auto"
    threads: int = 0
    """Threads of torch; 0: as many as it chooses."""
