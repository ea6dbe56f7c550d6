"""The page a person reads after a build, and the drafter's model card.

    build/*/metrics.json, tables, params.yaml ──collect──> Build ──charts──> index.html
                                                              └──card────> model_card.md

Everything on the page comes from files that other stages wrote; texts of rows are data and are
escaped. The page needs no network.
"""

from draftmill.report.page import write_report

__all__ = ["write_report"]
