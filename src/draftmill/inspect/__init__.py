"""inspect: look at the rows of an unknown source and propose its declaration.

    found = inspect(Source(files="chats.jsonl"))
    found.proposal.schema            # {"turns": {"each": "messages"}}, or None
    "\\n".join(report(found, 4096))  # for a person: keys, roles, candidates, shares, and the YAML

It reports; it does not decide what cannot be known: in agent traces `user` is often tool output.
"""

from draftmill.inspect.looking import Inspection, inspect
from draftmill.inspect.report import report
from draftmill.inspect.writing import write_declaration, yaml_text

__all__ = ["Inspection", "inspect", "report", "write_declaration", "yaml_text"]
