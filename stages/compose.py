"""conf/*.yaml in, params.yaml out; stops where the plan that DVC has made is wrong now."""

from draftmill.compose.ensure import ensure_composed, stop_if_broken
from draftmill.errors import guard
from draftmill.files import write_text
from draftmill.workspace import BUILD


def main() -> None:
    """Compose if conf/ changed, and leave the marker that says so."""
    stop_if_broken(ensure_composed())
    write_text(BUILD / "compose", "composed\n")


if __name__ == "__main__":
    guard(main)
