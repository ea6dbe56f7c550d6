"""The `draftmill` command: one module here per topic, each with a typer app that `main` merges.

Modules import heavy libraries inside their functions, so that `draftmill path` starts in a blink.
"""

from __future__ import annotations

import importlib
import pkgutil

import typer

from draftmill.errors import guard

HELP = """Turn many datasets into the drafter that makes one target model decode faster.

`dvc repro` builds; these commands look, check and prepare. Exit codes: 0 done, 1 a build or data error, 2 wrong
use (an unknown name included), 130 interrupted."""


def application() -> typer.Typer:
    """The whole command: the commands of every module in this package, merged."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=HELP)
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        app.add_typer(importlib.import_module(f"{__name__}.{module}").app)
    return app


def main() -> None:
    """Console entry point: exit codes 0 done, 1 build or data error, 2 wrong use, 130 interrupted."""
    guard(lambda: application()(standalone_mode=True))
