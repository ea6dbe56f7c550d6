"""Datasets that were added after DVC made its plan are built by a child of this stage."""

from draftmill.compose.ensure import ensure_composed, stop_if_broken
from draftmill.compose.replan import build_added
from draftmill.errors import guard
from draftmill.files import write_text
from draftmill.workspace import BUILD


def main() -> None:
    """Compose if nobody has, build what the plan does not have, and leave the marker."""
    stop_if_broken(ensure_composed())
    build_added()
    write_text(BUILD / "replan", "planned\n")


if __name__ == "__main__":
    guard(main)
