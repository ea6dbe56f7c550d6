"""The work on chunks shared by several processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path

from draftmill.errors import BuildError
from draftmill.extract.mapping import Mapper, Part
from draftmill.extract.readers import Chunk
from draftmill.extract.schema import Schema


def shared(schema: Schema, folder: Path, pieces: Sequence[Chunk], workers: int) -> Iterator[Part]:
    """The parts in the order of the chunks, from processes that start now. Raises BuildError if one is killed."""
    # A child that is a copy starts at once, and has what it needs; that is safe while there is one thread.
    from draftmill.extract import runs  # noqa: F401

    method = "fork" if threading.active_count() == 1 and "fork" in get_all_start_methods() else "spawn"
    pool = ProcessPoolExecutor(workers, get_context(method), _begin, (schema, folder))
    return _results(pool, pool.map(_work, range(len(pieces)), pieces), workers)


def _results(pool: ProcessPoolExecutor, parts: Iterator[Part], workers: int) -> Iterator[Part]:
    try:
        with pool:
            yield from parts
    except BrokenProcessPool:
        raise BuildError(
            "one of the processes was killed, as a system does that runs out of memory",
            file="conf/run/default.yaml",
            key="run.workers",
            found=f"{workers} processes",
            fix="set a lower number in conf/local/machine.yaml:  run: {workers: 1}",
        ) from None


_own: dict[str, Mapper] = {}


def _begin(schema: Schema, folder: Path) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _own["mapper"] = Mapper.of(schema, folder, memory=0)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(number: int, chunk: Chunk) -> Part:
    return _own["mapper"](number, chunk)
