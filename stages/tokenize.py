"""tokenize@d: build/generate/d/answers.parquet -> tokens, loss mask and figures in build/tokenize/d/."""

from __future__ import annotations

import sys

from draftmill.errors import guard


def main() -> None:
    """Tokenize the dataset named on the command line."""
    from draftmill.tokenize import build

    build(sys.argv[1])


if __name__ == "__main__":
    guard(main)
