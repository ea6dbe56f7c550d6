"""What inspect tells a person: keys, candidates, roles, shares, and the ready declaration."""

from __future__ import annotations

from collections.abc import Iterator

from draftmill.console import excerpt
from draftmill.inspect.conversation import find_conversations, role_meant
from draftmill.inspect.looking import Inspection
from draftmill.inspect.places import find_places, path_text
from draftmill.inspect.shares import shares
from draftmill.inspect.tree import tree
from draftmill.inspect.writing import yaml_text


def report(found: Inspection, context: int) -> Iterator[str]:
    """The report's lines. `context`: tokens over which a row is long."""
    unreadable = "".join(f"; {count} unreadable: {reason}" for reason, count in found.unreadable.items())
    yield f"{len(found.rows)} rows of {found.source.files or found.source.hub}{unreadable}"
    yield from tree(found.rows).lines()
    proposal = found.proposal
    conversation = proposal.conversation
    if conversation:
        yield ""
        places = find_places([found.rows] if proposal.rows == "$" else found.rows)
        for other in find_conversations(places) or [conversation]:
            where = f"{path_text(other.place.keys)} in {len(other.place.rows)} rows"
            yield f"conversation: {where}, role {other.role}, text {' or '.join(other.texts)}"
        counts = (
            f"{excerpt(str(label), 30)} {count} ({role_meant(label) or 'unknown'})"
            for label, count in conversation.labels.most_common()
        )
        yield f"roles: {', '.join(counts)}"
        yield from shares(conversation, context)
    if proposal.schema is None:
        return
    for key in ("tools", "id"):
        if key in proposal.schema:
            yield f"{key}: {proposal.schema[key]}"
    yield ""
    yield from yaml_text(found.declaration, proposal.notes).splitlines()
    yield ""
    yield f"tried on these rows: {found.funnel}"
