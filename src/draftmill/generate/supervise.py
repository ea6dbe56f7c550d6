"""The process beside a launched server: python -m draftmill.generate.supervise LEASE LOG IDLE_SECONDS COMMAND…

Stops the server's whole process group when the lease was not touched for so long, or on SIGTERM; ends when the
server ends. It removes the lease last.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_POLL_SECONDS = 0.25
_TERM_SECONDS = 10.0


class _Told(Exception):
    """SIGTERM."""


def main(lease: Path, log: Path, idle_s: float, command: list[str]) -> None:
    """Run until one of the ends named above."""

    def told(number: int, frame: FrameType | None) -> None:
        raise _Told

    signal.signal(signal.SIGTERM, told)
    with open(log, "wb") as output:
        # A group of its own: servers have children, and all of them hold the memory.
        server = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        started = time.time()
        while server.poll() is None and time.time() - _used(lease, started) < idle_s:
            time.sleep(_POLL_SECONDS)
    except _Told:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end(server)
        lease.unlink(missing_ok=True)


def _used(lease: Path, started: float) -> float:
    """When the lease was last touched; the launcher may not have written it yet."""
    try:
        return lease.stat().st_mtime
    except FileNotFoundError:
        return started


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:
            return
        try:
            server.wait(_TERM_SECONDS)
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
