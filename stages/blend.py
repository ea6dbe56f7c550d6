"""blend: the tokens, masks and states of every dataset -> build/blend/."""

from __future__ import annotations

from draftmill.blend import Blend, members
from draftmill.config import params, section
from draftmill.errors import guard


def main() -> None:
    """Mix all datasets into one training set, with a held-out part."""
    from draftmill.blend import stage
    from draftmill.generate import server

    server.stop()  # every answer is there: a server that generate launched is not needed any more
    blend, declared = section("blend", Blend), params()["datasets"]
    named = {name: declared[name] for name in params()["dataset_names"]}
    expected = {
        name: float(((dataset.get("schema") or {}).get("expect") or {}).get("yield", stage.DEFAULT_YIELD))
        for name, dataset in named.items()
    }
    stage.build(blend, members(blend, named), int(params()["seed"]), expected)


if __name__ == "__main__":
    guard(main)
