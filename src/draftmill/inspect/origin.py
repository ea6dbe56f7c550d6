"""What the argument of `draftmill inspect` means, and the context length that rows are compared with."""

from __future__ import annotations

import re
from pathlib import Path

from draftmill.config import params
from draftmill.errors import DataError, UsageError
from draftmill.extract import Source
from draftmill.workspace import PARAMS

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_GLOB = re.compile(r"[*?\[]")
DEFAULT_CONTEXT = 4096


def find_source(text: str, config: str | None = None, split: str | None = None) -> Source:
    """A file, folder or glob here if there is one, else the id of a dataset on the Hub.

    Raises DataError for what can be neither.
    """
    if Path(text).exists() or Path(text).is_symlink() or _GLOB.search(text):
        if config or split:
            raise UsageError("--config and --split belong to a dataset of the Hub, and this is a file", file=text)
        return Source(files=text)
    if _HUB_ID.fullmatch(text) and not Path(text).suffix.lstrip(".").isalpha():
        return Source(hub=text, config=config, split=split)
    raise DataError("no such file, and no id of a dataset on the Hub", file=text, fix="give a path, or owner/name")


def context_length() -> int:
    """The longest row that the composed target takes, or a usual figure outside a project."""
    if not PARAMS.exists():
        return DEFAULT_CONTEXT
    limit = (params().get("target") or {}).get("max_seq_len")
    return limit if isinstance(limit, int) else DEFAULT_CONTEXT
