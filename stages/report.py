"""report: metrics and tables of every stage in; one self-contained HTML page and the model card out."""

from __future__ import annotations

from draftmill.console import say
from draftmill.errors import guard


def main() -> None:
    """Write build/report/."""
    from draftmill.report import write_report
    from draftmill.workspace import output

    say(f"report: {write_report(output('report'))}")


if __name__ == "__main__":
    guard(main)
