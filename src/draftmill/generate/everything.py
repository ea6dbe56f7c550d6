"""`draftmill answer`: all datasets in one session, one queue, one server."""

from __future__ import annotations

from collections.abc import Sequence

from draftmill.config import params
from draftmill.console import say
from draftmill.generate import server
from draftmill.generate.job import Job, settings, wanted
from draftmill.generate.restore import fill
from draftmill.generate.store import Store
from draftmill.generate.talk import Talk
from draftmill.workspace import keep


def answer(datasets: Sequence[str]) -> None:
    """Ask for whatever the datasets (all that the target answers, if none is named) want and the store lacks.

    A server that this launches is stopped at the end. Raises UsageError for an unknown name, BuildError if a
    dataset is not extracted yet.
    """
    from draftmill.compose.ensure import ensure_composed

    ensure_composed()
    chosen = settings()
    names = list(datasets) or [name for name in params()["answered"] if wanted(name).answer_resolved == "regenerate"]
    jobs = [Job(name, chosen) for name in dict.fromkeys(names)]
    asking = [job for job in jobs if not job.recorded]
    for job in jobs:
        if job.recorded:
            say(f"{job.dataset}: its own answers are used; nothing to ask")
    with Store(keep("answers.sqlite")) as store:
        for job in asking:
            fill(store, job.dataset)
        try:
            session, figures = Talk(chosen).ask(asking, store)
        finally:
            if chosen.run.launch:
                server.stop()
    known, failed, seconds = session.counts["reused"], len(session.failures), figures["seconds"]
    say(f"{session.counts['asked']} asked, {known} known, {failed} without an answer, {seconds} s; now: dvc repro")
