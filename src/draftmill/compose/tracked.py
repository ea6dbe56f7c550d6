"""What each dataset's stages depend on, in a small file per dataset: build/compose/<dataset>.json.

DVC reads a stage's parameters anew for every stage, through a slow YAML parser: with four stages a dataset, the whole
of params.yaml would be parsed 4N times, and it grows with N too. A file of its own per dataset keeps that linear, and
a digest in place of a whole section keeps dvc.lock short, which DVC rewrites after every stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftmill.files import digest
from draftmill.workspace import BUILD

FOLDER = BUILD / "compose"


def file(dataset: str) -> Path:
    """Where a dataset's tracked parameters stand."""
    return FOLDER / f"{dataset}.json"


def of(dataset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one dataset's stages in a composed configuration: scalars as they are, sections as digests."""
    declared = values["datasets"][dataset]
    asking = [values[key] for key in ("target", "sampling", "seed", "quota_cap")]
    sections = {
        "source": declared["source"],
        "schema": declared["schema"],
        "keep": declared["keep_resolved"],
        "flag": declared["flag_resolved"],
        "quota": declared["quota"],
        "answer": declared["answer_resolved"],
        "mask": declared["mask"],
        "target": values["target"],
        "asking": [*asking, values["engine"]["identity"]],
        "states": [values["target"], values["states"]],
    }
    return {key: digest(value) if isinstance(value, dict | list) else value for key, value in sections.items()}


def write(values: Mapping[str, Any]) -> None:
    """Write the files of all datasets that take part."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for dataset in values["inputs"]:
        file(dataset).write_text(json.dumps(of(dataset, values), indent=2) + "\n", encoding="utf-8")
