"""extract: one dataset's rows to conversations, by its declaration. Usage: python -P stages/extract.py DATASET"""

from __future__ import annotations

import sys

from draftmill.errors import UsageError, guard
from draftmill.extract.run import run


def main() -> None:
    """Build build/extract/DATASET/."""
    if len(sys.argv) != 2:
        raise UsageError("one dataset's name is needed", fix="python -P stages/extract.py swe_agent")
    run(sys.argv[1])


if __name__ == "__main__":
    guard(main)
