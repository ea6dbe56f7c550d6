"""What an engine is to the rest of generate, and the registry that opens one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from draftmill.generate.request import Answer, Request
from draftmill.generate.settings import Engine, GenerateRun, Machine, Sampling

if TYPE_CHECKING:
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

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


def open_engine(
    target: Target, renderer: Renderer, engine: Engine, sampling: Sampling, run: GenerateRun, machine: Machine
) -> Asker:
    """The engine named in the configuration; nothing is loaded, started or connected before the first `ask`."""
    from draftmill.generate.embedded import Embedded

    return Embedded(target, renderer, sampling, run, machine)
