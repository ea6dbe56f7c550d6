"""The response store: every answer the target ever gave, in one SQLite file that survives kills and builds.

    with Store(keep("answers.sqlite")) as store:
        answer = store.get(key, limit)        # None: ask
        store.put(key, answer)

An entry serves if its answer stopped by itself or its limit was at least the one asked for; a longer
answer is served cut to the limit, which is what the target would have said under it. Writes are
committed at least every second or 64 answers.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from pathlib import Path
from typing import Any, cast

import orjson

from draftmill.console import say
from draftmill.errors import BuildError, of_machine
from draftmill.generate.request import Answer, Finish

COMMIT_ANSWERS, COMMIT_SECONDS = 64, 1.0
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "fuse.sshfs"}
_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, finish TEXT NOT NULL, max_new_tokens INTEGER NOT NULL, engine TEXT NOT NULL,
    output_ids BLOB, text TEXT, message TEXT, usage TEXT NOT NULL)"""
# An answer that stopped by itself is final; one that was cut gives way to a longer one.
_PUT = """INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    finish = excluded.finish, max_new_tokens = excluded.max_new_tokens, engine = excluded.engine,
    output_ids = excluded.output_ids, text = excluded.text, message = excluded.message, usage = excluded.usage
    WHERE answers.finish = 'length' AND excluded.max_new_tokens > answers.max_new_tokens"""
_GET = "SELECT finish, max_new_tokens, engine, output_ids, text, message, usage FROM answers WHERE key = ?"


class Store:
    """An open store; one writer commits at a time, other processes wait for it."""

    def __init__(self, path: Path) -> None:
        self._fresh: dict[str, Answer] = {}
        self._oldest = 0.0
        try:
            self._db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            # WAL needs shared memory, which network file systems do not give.
            if file_system(path.parent) in _NETWORK:
                say(f"{path.parent} is on a network file system: the answer store uses a rollback journal")
                self._db.execute("PRAGMA journal_mode = DELETE")
            else:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(_TABLE)
        except sqlite3.DatabaseError as error:
            raise of_machine(error, path) or BuildError(
                f"the answer store cannot be opened: {error}",
                file=path,
                fix="move the file away (answers of build/generate come back into a new one)",
            ) from None

    def get(self, key: str, limit: int) -> Answer | None:
        """The stored answer, cut to `limit` tokens, if it serves that limit."""
        answer = self._fresh.get(key) or self._read(key)
        if answer is None or (answer.finish == "length" and answer.limit < limit):
            return None
        return answer.within(limit)

    def put(self, key: str, answer: Answer) -> None:
        """Record an answer; committed with the next 63, or by the first `put` or `tick` a second later."""
        if not self._fresh:
            self._oldest = time.monotonic()
        self._fresh[key] = answer
        if len(self._fresh) >= COMMIT_ANSWERS:
            self.commit()
        else:
            self.tick()

    def tick(self) -> None:
        """Commit if the oldest uncommitted answer is a second old."""
        if self._fresh and time.monotonic() - self._oldest >= COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Write what is uncommitted, in one transaction."""
        if not self._fresh:
            return
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(_PUT, (_row(key, answer) for key, answer in self._fresh.items()))
        self._db.execute("COMMIT")
        self._fresh.clear()

    def __len__(self) -> int:
        self.commit()
        return int(self._db.execute("SELECT COUNT(*) FROM answers").fetchone()[0])

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.commit()
        self._db.close()

    def _read(self, key: str) -> Answer | None:
        row = self._db.execute(_GET, (bytes.fromhex(key),)).fetchone()
        if row is None:
            return None
        finish, limit, engine, ids, text, message, usage = row
        return Answer(
            finish=cast(Finish, finish),
            limit=limit,
            engine=engine,
            output_ids=None if ids is None else array("i", ids).tolist(),
            text=text,
            message=None if message is None else orjson.loads(message),
            usage=orjson.loads(usage),
        )


def _row(key: str, answer: Answer) -> tuple[Any, ...]:
    ids = None if answer.output_ids is None else array("i", answer.output_ids).tobytes()
    message = None if answer.message is None else orjson.dumps(answer.message).decode()
    usage = orjson.dumps(answer.usage).decode()
    return bytes.fromhex(key), answer.finish, answer.limit, answer.engine, ids, answer.text, message, usage


def file_system(folder: Path) -> str:
    """The file system type a folder is on, as /proc/mounts names it; "" where that cannot be told."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    target, best, kind = folder.resolve(), Path("/"), ""
    for line in mounts.read_text().splitlines():
        _, place, name, *_ = line.split()
        mount = Path(place.replace("\\040", " "))
        if target.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, name
    return kind
