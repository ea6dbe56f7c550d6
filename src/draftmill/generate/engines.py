"""What an engine is to the rest of generate, and the registry that opens one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from draftmill.errors import ConfigError
from draftmill.generate.request import Answer, Request
from draftmill.generate.settings import Engine, GenerateRun, Machine, Sampling

if TYPE_CHECKING:
    from draftmill.generate.protocols import Wire
    from draftmill.target import Renderer, Target


class Asker(Protocol):
    """An open engine."""

    concurrency: int
    """At most so many `ask` calls at a time."""

    async def ask(self, request: Request) -> Answer:
        """The target's answer. Raises RowError for this row, DraftmillError if going on is of no use."""
        ...

    def line(self) -> str:
        """What the progress display says about the engine, such as retries and servers; "" for nothing."""
        ...

    def figures(self) -> dict[str, object]:
        """What the run's record says about the engine, such as requests and retries."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


def open_engine(
    target: Target, renderer: Renderer, engine: Engine, sampling: Sampling, run: GenerateRun, machine: Machine
) -> Asker:
    """The engine named in the configuration; nothing is loaded, started, connected or required before it is entered."""
    if engine.name == "transformers":
        from draftmill.generate.embedded import Embedded

        return Embedded(target, renderer, sampling, run, machine)
    from draftmill.generate.http import Http
    from draftmill.generate.preflight import wanted
    from draftmill.generate.server import keep_in_use, leased

    async def urls() -> tuple[str, ...]:
        if not found and (not run.launch or engine.name == "openai"):
            fix = "run.generate.urls: [http://…]" + (
                "" if engine.name == "openai" else ", or run.generate.launch: true"
            )
            raise ConfigError(
                f"no server for engine '{engine.name}'", file="conf/run/default.yaml", key="generate.urls", fix=fix
            )
        return found or await leased(target, engine, run)

    found = run.urls or ((engine.url,) if engine.url else ())
    beat = None if found else keep_in_use
    return Http(_wire(engine, sampling, renderer.eos_ids), urls, engine, run, wanted(target, run), beat)


def _wire(engine: Engine, sampling: Sampling, eos_ids: tuple[int, ...]) -> Wire:
    from draftmill.generate import protocols

    if engine.name == "sglang":
        return protocols.SGLang(sampling, eos_ids)
    if engine.name == "vllm":
        return protocols.VLLM(sampling, eos_ids)
    return protocols.Chat(engine, sampling)
