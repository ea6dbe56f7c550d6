"""Where the rows of a dataset are: the `source` section of its declaration."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A dataset of the Hub, or files here; exactly one of `hub` and `files`, or `sample` alone."""

    hub: str | None = None
    """Id of a dataset on the Hub, `owner/name`."""
    config: str | None = None
    """Its configuration (subset); needed where it has several."""
    split: str | list[str] | None = None
    """One or several of its splits; needed where it has several."""
    data_files: str | list[str] | None = None
    """Globs of files inside the Hub repository, instead of `config` and `split`."""
    revision: str | None = None
    """Commit of the Hub repository; `draftmill pin` writes it."""
    files: str | list[str] | None = None
    """Files, globs or folders here."""
    rows: str | None = None
    """What a row is, as a path into a file's document: `$`, `data[*]`, or `*` for the values of an object."""
    sample: str | list[str] | None = None
    """Local stand-in of the same form, which `source_mode: sample` reads instead."""

    def __post_init__(self) -> None:
        if self.hub and self.files:
            raise ValueError("`hub` and `files` exclude each other")
        if not (self.hub or self.files or self.sample):
            raise ValueError("says nowhere where the rows are: add  hub: owner/name  or  files: data/mine/*.jsonl")
        if self.hub and self.hub.count("/") > 1:
            raise ValueError(f"`hub: {self.hub}` is not a dataset id: write owner/name as on its page, not an address")
        given = [key for key in ("config", "split", "data_files", "revision") if getattr(self, key)]
        if given and not self.hub:
            raise ValueError(f"`{given[0]}` belongs to `hub`, which is not given")
        if self.data_files and (self.split or self.config):
            raise ValueError("`data_files` stands instead of `config` and `split`")
        if self.rows is not None and self.rows != "*":
            from draftmill.paths import PathError, compile

            try:
                compile(self.rows)
            except PathError as error:
                raise ValueError(f"`rows`: {error}") from None

    def pick(self, mode: Literal["sample", "real"]) -> Source:
        """The source that a build in this mode reads: the sample if wanted and there, or if it is all there is."""
        if self.sample and (mode == "sample" or not (self.hub or self.files)):
            return Source(files=self.sample, rows=self.rows)
        return replace(self, sample=None)


def listed(value: str | list[str] | None) -> list[str]:
    """One or several texts as a list."""
    return [] if value is None else [value] if isinstance(value, str | os.PathLike) else list(value)
