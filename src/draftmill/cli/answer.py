"""`draftmill answer`, `draftmill server`, `draftmill audit`: the target's answers outside a build."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()
server_app = typer.Typer(no_args_is_help=True, help="The server that draftmill launched.")
app.add_typer(server_app, name="server")


@app.command("answer")
def answer_command(
    datasets: Annotated[
        list[str] | None, typer.Argument(help="Names of datasets; all that the target answers if none")
    ] = None,
) -> None:
    """Ask for whatever is wanted and missing, over all datasets in one queue; `dvc repro` then only assembles."""
    from draftmill.generate.everything import answer

    answer(datasets or [])


@app.command("audit")
def audit_command(dataset: Annotated[str, typer.Argument(help="Name of a dataset")]) -> None:
    """Re-check a dataset's answers: ids against text, counts against usage, prompts against the template."""
    from draftmill.console import say
    from draftmill.errors import DataError
    from draftmill.generate.audit import audit
    from draftmill.generate.job import settings, wanted
    from draftmill.generate.store import Store
    from draftmill.workspace import keep

    wanted(dataset)
    with Store(keep("answers.sqlite")) as store:
        turns, found = audit(dataset, settings(), store)
    for finding, ids in sorted(found.items()):
        say(f"{finding}: {len(ids)} (rows {', '.join(ids[:3])}{', …' if len(ids) > 3 else ''})")
    if found:
        raise DataError(f"{dataset}: {sum(map(len, found.values()))} findings in {turns} answers")
    say(f"{dataset}: {turns} answers, nothing found")


@server_app.command("status")
def status_command() -> None:
    """Say which server is running, and where."""
    from draftmill.console import say
    from draftmill.generate.server import current, log_path

    lease = current()
    say(f"{lease.engine} at {lease.url}, log {log_path()}" if lease else "no server is running")


@server_app.command("stop")
def stop_command() -> None:
    """Stop the server, if one is running."""
    from draftmill.console import say
    from draftmill.generate.server import stop

    say("stopped" if stop() else "no server was running")
