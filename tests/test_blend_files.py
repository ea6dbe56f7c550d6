"""The blends in conf/blend/, against the datasets in conf/dataset/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from draftmill.blend import Blend, members
from draftmill.blend.allocate import Supply, allocate
from draftmill.config import build

CONF = Path(__file__).parent.parent / "conf"


def load(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def datasets() -> dict[str, dict[str, Any]]:
    return {path.stem: load(path) for path in sorted((CONF / "dataset").glob("*.yaml"))}


def quota(declared: dict[str, Any]) -> int:
    """Rows asked for; a quota of all counts as the 290 answered requests of wildclaw."""
    asked = declared["quota"]
    return 290 if asked == "all" else asked["rows"] if isinstance(asked, dict) else asked


@pytest.mark.parametrize("path", sorted((CONF / "blend").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_is_valid_and_matches_datasets(path: Path, datasets: dict[str, dict[str, Any]]) -> None:
    blend = build(Blend, load(path), file=str(path), key="")
    assert all(members(blend, datasets).rules.values())
    # Each key stands in the file: a parameter that is absent would fail its DVC stage.
    assert set(load(path)) == set(Blend.__dataclass_fields__)


def test_eagle3_100k_asks_for_88088_samples_of_ten_datasets(datasets: dict[str, dict[str, Any]]) -> None:
    blend = build(Blend, load(CONF / "blend/eagle3_100k.yaml"), file="", key="")
    rules = members(blend, datasets).rules
    asked = {name: quota(datasets[name]) for names in rules.values() for name in names}
    assert len(asked) == 10 and sum(asked.values()) == 88_088
    assert sum(asked[name] for name in rules["native"]) == 4_800
    assert members(blend, datasets).priority[:2] == ["deepswe_kimi", "kimi_k25_2000x"]


def test_general_heavy_200k_fills_up_to_its_size(datasets: dict[str, dict[str, Any]]) -> None:
    blend = build(Blend, load(CONF / "blend/general_heavy_200k.yaml"), file="", key="")
    rules = members(blend, datasets).rules
    names = [name for own in rules.values() for name in own]
    assert "nemotron_v2" not in names
    # 2 % are held out.
    supply = {name: Supply([1] * int(0.98 * quota(datasets[name]))) for name in names}
    made = allocate(blend, rules, supply)
    got = {name: request.feasible for name, request in made.requests.items()}
    assert sum(got.values()) == 200_000 and not made.problems
    assert (got["agent_training"], got["infinity_instruct"]) == (10_000, 100_000)
    assert got["hermes_fc"] == int(0.98 * 1893)
    rest = ("metamath", "webinstruct_sub", "codefeedback")
    shares = [got[name] / supply[name].rows for name in rest]
    assert max(shares) - min(shares) < 0.001
