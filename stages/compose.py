"""conf/*.yaml in, params.yaml and what stages track of it out; stops where the plan that DVC has made is wrong now."""

from draftmill.compose import tracked
from draftmill.compose.ensure import ensure_composed, stop_if_broken
from draftmill.config import params
from draftmill.errors import guard


def main() -> None:
    """Compose if conf/ changed, and write what each dataset's stages track."""
    stop_if_broken(ensure_composed())
    tracked.write(params())


if __name__ == "__main__":
    guard(main)
