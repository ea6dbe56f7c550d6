"""The engine in process: questions that wait are decoded together, the longest first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from draftmill.console import say
from draftmill.generate.request import Answer, Request
from draftmill.generate.settings import GenerateRun, Machine, Sampling

if TYPE_CHECKING:
    from draftmill.target import Renderer, Target

# Questions looked at when a batch is chosen: prompts of like length waste least padding.
WINDOW_BATCHES = 8


class Embedded:
    """The target in this process; its weights are loaded at the first question."""

    def __init__(
        self, target: Target, renderer: Renderer, sampling: Sampling, run: GenerateRun, machine: Machine
    ) -> None:
        self.concurrency = run.batch_size * WINDOW_BATCHES
        self._target, self._sampling, self._run, self._machine = target, sampling, run, machine
        self._eos_ids = renderer.eos_ids
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._model: Any = None
        self._stopped = False

    async def ask(self, request: Request) -> Answer:
        """The target's own answer, exact ids."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await future

    def line(self) -> str:
        """Nothing to say: no server, no retries."""
        return ""

    def figures(self) -> dict[str, object]:
        """Nothing that differs between runs."""
        return {}

    async def __aenter__(self) -> Self:
        self._stopped = False
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True  # a thread cannot be cancelled; it looks before each token
        if self._worker is not None:
            self._worker.cancel()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # let every row that can ask do so before a batch is chosen
            if not self._waiting:
                self._worker = None
                return
            batch = self._next_batch()

            def finished(index: int, ids: list[int], batch: list[Any] = batch) -> None:
                loop.call_soon_threadsafe(_resolve, batch[index][1], self._answer(batch[index][0], ids))

            try:
                await asyncio.to_thread(self._decode, [request for request, _ in batch], finished)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)

    def _next_batch(self) -> list[tuple[Request, asyncio.Future[Answer]]]:
        self._waiting.sort(key=lambda item: (-len(item[0].prompt_ids), item[0].key))
        widest = len(self._waiting[0][0].prompt_ids)
        size = max(1, min(self._run.batch_size, self._run.batch_tokens // widest))
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        return batch

    def _decode(self, requests: list[Request], finished: Callable[[int, list[int]], None]) -> None:
        from draftmill.generate.decode import decode

        if self._model is None:
            self._model = self._load()
        for index, ids in decode(self._model, requests, self._sampling, self._eos_ids, lambda: self._stopped):
            finished(index, ids)

    def _load(self) -> Any:
        import torch

        from draftmill.target import load_model

        if self._machine.threads:
            torch.set_num_threads(self._machine.threads)
        say(f"generate: loading {self._target.name} into this process")
        return load_model(self._target, self._machine.device)

    def _answer(self, request: Request, ids: list[int]) -> Answer:
        return Answer(
            finish="stop" if ids[-1] in self._eos_ids else "length",
            limit=request.limit,
            engine="transformers",
            output_ids=ids,
            usage={"prompt_tokens": len(request.prompt_ids), "completion_tokens": len(ids)},
        )


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
