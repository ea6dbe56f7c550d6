"""What an output was made from, as it stands in the manifest of every stage.

Only what the stage's own parameters and inputs determine: anything else would be out of date where DVC rightly does
not run the stage again, and two ways to one commit would give two manifests. So the code is named by the package's
version, not by a commit, which would change with every remark. Who wants the whole story reads from blend backwards.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from draftmill import __version__
from draftmill.files import digest
from draftmill.workspace import BUILD

if TYPE_CHECKING:
    from draftmill.target import Target

SIZE = 8


def lineage(**made_from: Any) -> dict[str, Any]:
    """The version of the code, and what the stage adds."""
    return {"version": __version__, **made_from}


def of_source(dataset: str, declared: dict[str, Any], source_mode: str) -> dict[str, Any]:
    """Of extract: the dataset, the revision it was read at, and a digest of what was declared about its rows.

    The order in which files are named changes no row, and not this either.
    """
    source = {key: sorted(value) if isinstance(value, list) else value for key, value in declared["source"].items()}
    is_sample = source_mode == "sample" and bool(source.get("sample"))
    rules = [source, *(declared.get(key) for key in ("schema", "keep_resolved", "flag_resolved"))]
    revision = "sample" if is_sample else source.get("revision")
    return lineage(dataset=dataset, revision=revision, declaration=digest(rules, SIZE))


def of_target(target: Target, template: str | None = None) -> dict[str, Any]:
    """The target, its revision, and the digest of the template that was rendered, or that was declared."""
    return {"name": target.name, "revision": target.revision, "template": template or target.template_digest}


def of_stage(stage: str, dataset: str) -> dict[str, Any]:
    """What a stage noted for a dataset; nothing if it has not run, as for sets that are only extracted."""
    path = BUILD / stage / dataset / "metrics.json"
    noted: dict[str, Any] = json.loads(path.read_bytes()).get("lineage", {}) if path.exists() else {}
    return {key: value for key, value in noted.items() if key not in ("version", "dataset")}
