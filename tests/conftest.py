"""Fixtures that several test modules share: a tiny random target, and the embedded model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from draftmill.config import build
from draftmill.target import Target, prepare

# The same examples at every run, and no limit of time: a verdict must not depend on how busy a machine is.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, max_examples=500)
settings.load_profile("steady")

ROOT = Path(__file__).parent.parent
KEEP = ROOT / ".draftmill"


def load_target(name: str, **changes: Any) -> Target:
    """A file of conf/target as a Target, its template found from anywhere."""
    loaded = yaml.safe_load((ROOT / f"conf/target/{name}.yaml").read_text(encoding="utf-8"))
    if loaded["chat_template"]:
        loaded |= {"chat_template": str(ROOT / loaded["chat_template"]), "template_digest": None}
    return build(Target, {**loaded, **changes}, file=f"conf/target/{name}.yaml", key="target")


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The random target, made once a session in a folder of its own and named by path from then on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTMILL_KEEP", str(tmp_path_factory.mktemp("targets")))
        folder = prepare(load_target("tiny"))
    return load_target("tiny", source={"path": str(folder.absolute())})


@pytest.fixture(scope="session")
def smollm2() -> Target:
    """The embedded model, unpacked in the project's own .draftmill/targets (half a minute, once)."""
    pytest.importorskip("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTMILL_KEEP", os.environ.get("DRAFTMILL_KEEP", str(KEEP)))
        folder = prepare(load_target("smollm2_135m"))
    return load_target("smollm2_135m", source={"path": str(folder.absolute())})
