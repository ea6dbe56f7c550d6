"""export: build/train/drafter -> build/export, a directory that SGLang and vLLM load as it is."""

from draftmill.config import section
from draftmill.drafters import Drafter
from draftmill.errors import guard


def main() -> None:
    """Export the trained drafter."""
    from draftmill.export.stage import build

    build(section("drafter", Drafter))


if __name__ == "__main__":
    guard(main)
