"""Every experiment, target, engine, blend and drafter file composes and is valid, and params.yaml is up to date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from draftmill.compose.changes import between, overrides
from draftmill.compose.composition import composed
from draftmill.compose.resolvers import HUB_INPUT, common_part, input_path, resolve_answer, resolve_flag, resolve_keep
from draftmill.compose.sources import conf_digest
from draftmill.compose.validation import validate

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))
CHOICES = [
    f"{group}={path.stem}"
    for group in ("target", "engine", "drafter", "evaluate", "sampling", "states")
    for path in sorted((ROOT / "conf" / group).glob("*.yaml"))
]
BLENDS = {"default": "quickstart", "eagle3_100k": "eagle3_kimi_k25", "general_heavy_200k": "dflash_qwen3"}


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compositions name files as they are seen from the project's folder."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_valid(name: str) -> None:
    """Composed and validated whole, nothing left open."""
    composition = composed([f"experiment={name}"])
    validate(composition)
    assert "${" not in composition.text and "???" not in composition.text
    assert composition.values["answered"]


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_a_group_is_valid(choice: str) -> None:
    """Each file of a group, in the quickstart."""
    validate(composed([choice]))


def test_every_blend_belongs_to_an_experiment_whose_datasets_it_takes() -> None:
    """A blend takes every dataset that its experiment answers: nothing is answered for nothing."""
    assert set(BLENDS) == {path.stem for path in (ROOT / "conf/blend").glob("*.yaml")}
    for blend, experiment in BLENDS.items():
        values = composed([f"experiment={experiment}", f"blend={blend}"]).values
        taken = [name for names in values["blend_members"]["rules"].values() for name in names]
        assert sorted(taken) == sorted(values["answered"])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_parameter_hides_from_the_run_cache(name: str) -> None:
    """DVC leaves keys named `size` and `nfiles` out of what tells runs apart; the blend has a digest for that."""
    values = composed([f"experiment={name}"]).values
    tracked = ("target", "drafter", "evaluate", "sampling", "blend_members")
    assert not {"size", "nfiles"} & {key for section in tracked for key in keys(values[section])}
    larger = composed([f"experiment={name}", "blend.size={rows:123}"]).values
    assert larger["blend_digest"] != values["blend_digest"]


def keys(value: object) -> Iterator[str]:
    """Every key at any depth."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key
        yield from keys(inner)


def test_params_yaml_is_what_conf_composes_to() -> None:
    """The committed file needs no recomposition; one machine's own settings aside."""
    committed = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    fresh = composed().values
    for values in (committed, fresh):
        values.pop("run")
    if any((ROOT / "conf/local").glob("*.yaml")):
        committed.pop("conf_digest")
        fresh.pop("conf_digest")
    assert committed == fresh


def test_composition_is_the_same_twice_and_takes_overrides() -> None:
    """Equal bytes each time; a dataset's keys are reached by overrides."""
    assert composed().text == composed().text
    values = composed(["datasets.swe_agent.quota=5", "datasets.sharegpt.enabled=false"]).values
    assert values["datasets"]["swe_agent"]["quota"] == 5
    assert "sharegpt" not in values["dataset_names"]
    assert values["conf_digest"] == conf_digest(ROOT / "conf")


def test_native_answers_are_kept_for_their_target_only() -> None:
    """`native_to` is decided in the composition, and with it the default keep rule."""
    kimi = composed(["experiment=eagle3_kimi_k25"]).values["datasets"]["deepswe_kimi"]
    other = composed(["experiment=quickstart"]).values["datasets"]["deepswe_kimi"]
    assert (kimi["answer_resolved"], kimi["keep_resolved"]) == ("dataset", "full")
    assert (other["answer_resolved"], other["keep_resolved"]) == ("regenerate", "to_last_user")


def test_inputs_are_the_fixed_part_of_what_is_read() -> None:
    """One path per dataset that DVC can watch."""
    assert input_path({"files": "data/mine/*.jsonl.zst"}, "real") == "data/mine"
    assert input_path({"files": ["data/a/x.jsonl", "data/b/*.jsonl"]}, "real") == "data"
    assert input_path({"files": "data/x.jsonl", "sample": "data/samples/x.jsonl"}, "sample") == "data/samples/x.jsonl"
    assert input_path({"hub": "org/name", "sample": "data/samples/x.jsonl"}, "real") == HUB_INPUT
    assert input_path({"hub": "org/name"}, "sample") == HUB_INPUT
    assert (ROOT / HUB_INPUT).exists()


def test_defaults_that_follow_from_other_keys() -> None:
    """answer, keep and the mask's flag."""
    assert resolve_answer({"native_to": "Kimi-K2*"}, "kimi-k2.5") == "dataset"
    assert resolve_keep({"prompt": "q"}, "regenerate") == "first_user"
    assert resolve_keep({"keep": {"users": 2}}, "dataset") == {"users": 2}
    assert resolve_flag({"flag": "train"}) == "train"
    assert resolve_flag("assistant") is None


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_common_part_covers_every_path(paths: list[list[str]]) -> None:
    """Every given path lies at or below the path that is watched."""
    texts = ["/".join(path) for path in paths]
    common = common_part(texts)
    assert common == "." or all(text == common or text.startswith(f"{common}/") for text in texts)


def test_changes_say_what_a_plan_lacks() -> None:
    """Added and removed datasets, changed keys, and stages that a plan made before has wrong."""
    old = {"inputs": {"a": "x", "b": "y"}, "answered": {"a": "x"}, "datasets": {"a": {"q": 1}, "b": {}}, "seed": 0}
    new = {
        "inputs": {"a": "x", "c": "z"},
        "answered": {"a": "x", "c": "z"},
        "datasets": {"a": {"q": 2}, "c": {}},
        "seed": 1,
    }
    changes = between(old, new)
    assert (changes.added, changes.removed, changes.to_build, changes.broken) == (["c"], ["b"], ["c"], ["b"])
    assert list(changes.lines()) == ["+ c", "~ a: q", "~ seed: now 1", "- b"]
    assert not between(new, new)
    assert between(old, old | {"answered": {"a": "x", "b": "y"}}).to_build == ["b"]
    assert between(old, old | {"inputs": {"a": "x", "b": "elsewhere"}}).broken == ["b"]
    assert overrides(old, old | {"seed": 3}) == ["seed=3"]
    declared: Any = {"schema": {"join": {True: "id", "as": "x"}, "roles": {0: "user", "x": "drop"}}}
    renamed: Any = {"schema": {"join": {True: "key", "as": "x"}, "roles": {0: "user", "y": "drop"}}}
    before, after = ({**old, "datasets": {"a": made, "b": {}}} for made in (declared, renamed))
    changes = between(before, after)
    assert list(changes.lines()) == ["~ a: schema.join.True, schema.roles.x, schema.roles.y"]
