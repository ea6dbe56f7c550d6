"""generate@d: build/extract/<d>/rows.parquet in, build/generate/<d>/ out; every answer passes through the store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from draftmill.console import say
from draftmill.files import digest, record_run
from draftmill.generate.assemble import Assembly, recorded, replay
from draftmill.generate.job import Job, Settings, settings, wanted
from draftmill.generate.restore import fill
from draftmill.generate.store import Store
from draftmill.generate.talk import Talk
from draftmill.lineage import SIZE, lineage, of_target
from draftmill.workspace import keep, output


def build(dataset: str) -> None:
    """Run the stage for one dataset."""
    chosen = settings()
    job = Job(dataset, chosen)
    assembly = Assembly(output("generate", dataset))
    if job.recorded:
        _keep_recorded(job, assembly)
    else:
        _answer(job, chosen, assembly)
    say(f"generate {dataset}: {job.available} available, {assembly.taken} taken")


def _keep_recorded(job: Job, assembly: Assembly) -> None:
    """The dataset's own answers pass through."""
    rows = ((row, recorded(row.conversation)) for _, row in job.rows.read(job.candidates))
    unasked = job.available - len(job.candidates)
    made_from = _lineage(job.dataset)
    assembly.write(rows, requested=job.requested, available=job.available, unasked=unasked, lineage=made_from)
    record_run("generate", job.dataset, seconds=0.0, asked=0, reused=0)


def _answer(job: Job, chosen: Settings, assembly: Assembly) -> None:
    talk = Talk(chosen)
    with Store(keep("answers.sqlite")) as store:
        fill(store, job.dataset)
        session, figures = talk.ask([job], store)
        taken = job.taken()
        rows = (
            (row, replay(job.conversation(row, talk.prompter, talk.judge), store, session.failures))
            for _, row in job.rows.read(taken)
        )
        unasked = job.available - len(taken)
        target = of_target(chosen.target, talk.renderer.digest)
        sampling = asdict(chosen.sampling) | {"seed": chosen.seed}
        made_from = _lineage(job.dataset, target=target, engine=asdict(chosen.engine.identity), sampling=sampling)
        assembly.write(rows, requested=job.requested, available=job.available, unasked=unasked, lineage=made_from)
    record_run("generate", job.dataset, **figures)


def _lineage(dataset: str, **asked: Any) -> dict[str, Any]:
    """With the digest of what the dataset declares about its answers; recorded ones come from no target."""
    return lineage(dataset=dataset, declaration=digest(asdict(wanted(dataset)), SIZE), **asked)
