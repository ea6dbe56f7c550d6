"""A server that draftmill started: launched once, used by one dataset's stage after the other.

`.draftmill/server/lease.json` says what is running and for which fingerprint (target, engine, flags). Clients
touch the lease while they use it; a small supervisor process (`supervise`) stops the server when nobody has
touched it for `idle_timeout_s`, when it is told to, or when the server ends by itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from draftmill.console import say
from draftmill.errors import BuildError
from draftmill.files import digest, write_json
from draftmill.generate.settings import Engine, GenerateRun
from draftmill.workspace import keep

if TYPE_CHECKING:
    from draftmill.target import Target

STOP_SECONDS = 20.0
_POLL_SECONDS, _TOUCH_SECONDS = 0.25, 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A launched server."""

    fingerprint: str
    url: str
    supervisor: int
    """Process id; `born` tells it from another process that was given the same id later."""
    born: str
    engine: str


def lease_path() -> Path:
    """Where the lease is, whether or not there is one."""
    return keep("server") / "lease.json"


def current() -> Lease | None:
    """The lease of a supervisor that is alive."""
    try:
        lease = Lease(**json.loads(lease_path().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return lease if born(lease.supervisor) == lease.born else None


def stop() -> bool:
    """Stop the launched server, if there is one; whether there was. Safe to call from anywhere."""
    lease = current()
    if lease is None:
        lease_path().unlink(missing_ok=True)
        return False
    os.kill(lease.supervisor, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while born(lease.supervisor) == lease.born and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS / 5)
    return True


def command(target: Target, engine: Engine, run: GenerateRun, port: int) -> list[str]:
    """The command line that serves the target."""
    from draftmill.target import prepare

    identity, folder = engine.identity, os.fspath(prepare(target))
    dtype = [
        "--dtype",
        identity.dtype or target.dtype,
        *(["--quantization", identity.quantization] if identity.quantization else []),
    ]
    python = run.launch_python or sys.executable
    place = ["--host", "127.0.0.1", "--port", str(port)]
    context = str(target.max_seq_len)
    if engine.name == "sglang":
        head = ["-m", "sglang.launch_server", "--model-path", folder, "--context-length", context]
    else:
        head = ["-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--max-model-len", context]
    return [python, *head, "--served-model-name", target.name, *dtype, *place, *run.launch_flags]


async def leased(target: Target, engine: Engine, run: GenerateRun) -> tuple[str, ...]:
    """The URL of a server for this target: the one that is running, or a new one, up and healthy.

    Raises BuildError with the end of the server's log if it does not come up.
    """
    from draftmill.target import weights_digest

    launch = [run.launch_python, list(run.launch_flags), run.launch_env, target.max_seq_len]
    fingerprint = digest([weights_digest(target), engine.name, dataclasses.asdict(engine.identity), launch])
    lease = await asyncio.to_thread(_take, target, engine, run, fingerprint)
    await _healthy(lease, run)
    return (lease.url,)


async def keep_in_use() -> None:
    """Say that the server is in use, until cancelled."""
    while True:
        lease_path().touch()
        await asyncio.sleep(_TOUCH_SECONDS)


def _take(target: Target, engine: Engine, run: GenerateRun, fingerprint: str) -> Lease:
    """The lease with this fingerprint; a server of other settings is stopped for it."""
    with open(lease_path().with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lease = current()
        if lease is not None and lease.fingerprint != fingerprint:
            say(f"generate: stopping the {lease.engine} server of other settings")
            stop()
            lease = None
        return lease or _launch(target, engine, run, fingerprint)


def _launch(target: Target, engine: Engine, run: GenerateRun, fingerprint: str) -> Lease:
    port = _free_port()
    arguments = command(target, engine, run, port)
    say(f"generate: starting {' '.join(arguments)}")
    supervise = [sys.executable, "-P", "-m", "draftmill.generate.supervise", str(lease_path()), str(log_path())]
    environment = {**os.environ, **run.launch_env}
    environment.pop("PYTHONSAFEPATH", None)
    arguments = [*supervise, str(run.idle_timeout_s), *arguments]
    # Not subprocess: the supervisor outlives this process, and nobody here waits for it.
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    process = os.posix_spawn(sys.executable, arguments, environment, file_actions=null, setsid=True)
    lease = Lease(
        fingerprint=fingerprint,
        url=f"http://127.0.0.1:{port}",
        supervisor=process,
        born=born(process),
        engine=engine.name,
    )
    write_json(lease_path(), dataclasses.asdict(lease))
    return lease


async def _healthy(lease: Lease, run: GenerateRun) -> None:
    deadline = time.monotonic() + run.launch_timeout_s
    while not await asyncio.to_thread(_answers, f"{lease.url}/health"):
        if current() is None:
            raise BuildError("the server ended before it was up", file=log_path(), found=_end_of_log())
        if time.monotonic() > deadline:
            stop()
            raise BuildError(
                f"the server was not up after {run.launch_timeout_s:.0f} s", file=log_path(), found=_end_of_log()
            )
        lease_path().touch()
        await asyncio.sleep(_POLL_SECONDS)


def log_path() -> Path:
    """What the server writes."""
    return keep("server") / "server.log"


def born(process: int) -> str:
    """When a process began, in the kernel's ticks; "" if there is none (or it waits to be reaped)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def _end_of_log() -> str:
    try:
        lines = log_path().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "no log"
    return " | ".join(line.strip() for line in lines[-5:])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: Any = listener.getsockname()[1]
        return int(port)
