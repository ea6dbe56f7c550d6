"""Errors that a person can act on: file, key, what was found, and the fix.

    raise BuildError("role 'critic' is not declared", file="conf/dataset/x.yaml", key="schema.roles",
                     found="labels seen: human 40, critic 3", fix="add  roles: {critic: drop}")

`guard` turns them into one clear message and an exit code; anything else is a fault of draftmill
itself and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

# What is wrong with the machine and not with draftmill: said in words, without a traceback.
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# Libraries in Rust and SQLite hide the number in their own errors.
_HIDDEN = re.compile(r"os error (\d+)|code: (\d+)")
_SQLITE = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_READONLY": errno.EROFS, "SQLITE_CANTOPEN": errno.EACCES}

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


class DraftmillError(Exception):
    """Base of all errors with a message for the user; `exit_code` is what the process ends with."""

    exit_code = EXIT_ERROR

    def __init__(
        self,
        message: str,
        *,
        file: str | os.PathLike[str] | None = None,
        key: str | None = None,
        found: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.key, self.found, self.fix = message, key, found, fix
        self.file = None if file is None else os.fspath(file)

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.key) if part)
        lines = [f"{place}: {self.message}" if place else self.message]
        lines += [f"  found: {self.found}"] if self.found else []
        lines += [f"  fix: {self.fix}"] if self.fix else []
        return "\n".join(lines)


class ConfigError(DraftmillError):
    """A configuration value is wrong: the file and key to edit are named."""


class DataError(DraftmillError):
    """The data do not fit their declaration, or cannot be read."""


class BuildError(DraftmillError):
    """A stage cannot be completed for a reason that is not in the data."""


class UsageError(DraftmillError):
    """A command was called wrongly."""

    exit_code = EXIT_USAGE


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that `name` most likely meant, or None."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A ready half sentence for `fix=`: the nearest name, else the list of names there are."""
    names = sorted(known)
    close = nearest(name, names)
    return f"did you mean '{close}'?" if close else f"known here: {', '.join(names)}"


def of_machine(error: BaseException, file: str | os.PathLike[str] | None = None) -> BuildError | None:
    """The BuildError for a disk that is full or cannot be written; None for any other error. `file`: being written."""
    number, place = _errno(error), file or getattr(error, "filename", None)
    if number in _CLOSED:
        fix = "check its owner, its permissions, and whether the disk is mounted read-only"
        return BuildError("cannot be written", file=place, found=os.strerror(number), fix=fix)
    if number not in _FULL:
        return None
    folder = next(path for path in (*Path(place or ".").absolute().parents, Path("/")) if path.is_dir())
    fix = "free some (`draftmill gc` helps) and run it again; what was finished is kept in .draftmill/"
    free = f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB free when it failed"
    return BuildError("no space left on the disk", file=place, found=free, fix=fix)


def _errno(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    if name := getattr(error, "sqlite_errorname", None):
        return next((number for prefix, number in _SQLITE.items() if name.startswith(prefix)), None)
    hidden = _HIDDEN.search(str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(hidden[1] or hidden[2]) if hidden else None


def guard(run: Callable[[], object]) -> NoReturn:
    """Run a program's main function and exit: 0, the error's code, or 130 when interrupted."""
    from draftmill.console import printable

    try:
        run()
    except DraftmillError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept in .draftmill/", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        told = of_machine(error)
        if told is None:
            raise
        print(printable(f"error: {told}"), file=sys.stderr)
        sys.exit(told.exit_code)
    sys.exit(EXIT_DONE)
