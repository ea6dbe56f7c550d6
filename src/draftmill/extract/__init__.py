"""extract: rows of any source to conversations, by a declaration.

    readers -> decode, where, join -> turns and roles -> system, tools -> keep -> duplicates -> rows.parquet

`validate(name, declaration, file)` checks a declaration; `draftmill.extract.run.run(dataset)` is the stage.
"""

from __future__ import annotations

from draftmill.extract.schema import Schema
from draftmill.extract.source import Source
from draftmill.extract.validation import validate

__all__ = ["Schema", "Source", "validate"]
