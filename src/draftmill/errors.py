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
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

# What is wrong with the machine and not with draftmill: said in words, without a traceback.
_FULL = "no space left; what was finished is kept in .draftmill/, free some and run it again (`draftmill gc` helps)"
_CLOSED = "cannot be written here: check its owner, its permissions, and whether the disk is mounted read-only"
_MACHINE = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EROFS: _CLOSED, errno.EACCES: _CLOSED, errno.EPERM: _CLOSED}

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


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, or None."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A ready half sentence for `fix=`: the nearest name, else the list of names there are."""
    names = sorted(known)
    close = nearest(name, names)
    return f"did you mean '{close}'?" if close else f"known here: {', '.join(names)}"


def guard(run: Callable[[], object]) -> NoReturn:
    """Run a program's main function and exit: 0, the error's code, or 130 when interrupted."""
    from draftmill.console import printable

    try:
        run()
    except DraftmillError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _MACHINE:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(printable(f"error: {place}{_MACHINE[error.errno]}"), file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept in .draftmill/", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_DONE)
