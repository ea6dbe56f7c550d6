"""generate@d: the wanted rows of build/extract/d/ in, the target's answers to them in build/generate/d/ out."""

from __future__ import annotations

import sys

from draftmill.errors import guard


def main() -> None:
    """Answer the rows of the dataset named on the command line."""
    from draftmill.generate.stage import build

    build(sys.argv[1])


if __name__ == "__main__":
    guard(main)
