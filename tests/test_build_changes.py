"""What a change re-runs: the real dvc on a tiny project, which stages ran, and how many rows were new."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinybuild import AFTER_BLEND, GAMMA, Space, alpha_rows, copied

from draftmill.pipeline import PER_DATASET


@pytest.fixture
def space(tmp_path: Path) -> Space:
    """A built project of the test's own."""
    return copied(tmp_path)


def stages(dataset: str, first: str = "extract") -> list[str]:
    """The stages of one dataset from `first` on."""
    return [f"{stage}@{dataset}" for stage in PER_DATASET[PER_DATASET.index(first) :]]


def test_nothing_changed_and_changes_that_matter_to_no_stage(space: Space) -> None:
    """A second build does nothing; comments, descriptions, licences, tags and anything under run: neither."""
    assert space.repro() == []
    space.edit(
        "conf/dataset/alpha.yaml", "tags: [general]", "tags: [other]\ndescription: questions\nlicence: MIT\n# why"
    )
    space.edit("conf/run/default.yaml", "device: auto", "device: cpu")
    space.edit("conf/run/default.yaml", "batch_tokens: 4096", "batch_tokens: 512")
    done = space.dvc("repro")
    assert (done.code, done.ran) == (0, [])
    assert "~ alpha: description, licence, tags" in done.text
    assert "~ run: device, hidden_states.batch_tokens" in done.text
    assert space.dvc("repro").text.endswith("Data and pipelines are up to date.\n")


def test_one_new_file_and_a_changed_one_are_one_build(space: Space) -> None:
    """An added dataset's four stages, a changed one's, then blend and later: each once, nothing else."""
    space.write("data/gamma.jsonl", "".join(f'{{"text": "Write line {i}."}}\n' for i in range(9)))
    space.write("conf/dataset/gamma.yaml", GAMMA)
    space.edit("conf/dataset/alpha.yaml", "quota: 4", "quota: 6")
    done = space.dvc("repro")
    assert done.code == 0, done.text
    assert sorted(done.ran[:-5]) == sorted(stages("gamma") + stages("alpha", "generate"))
    assert done.ran[-5:] == ["blend", *AFTER_BLEND]
    assert "+ gamma\n~ alpha: quota" in done.text
    assert space.figures("generate", "gamma")["asked"] == 3
    assert (asked := space.figures("generate", "alpha"))["asked"] == 2 and asked["reused"] == 4
    assert (states := space.figures("hidden_states", "alpha"))["captured"] == 2 and states["reused"] == 4
    assert set(space.metrics("blend")["datasets"]) == {"alpha", "beta", "gamma"}
    assert space.repro() == []


@pytest.mark.parametrize("how", ["removed", "disabled"])
def test_a_dataset_less_asks_for_a_second_run(space: Space, how: str) -> None:
    """The plan DVC made is wrong: the first run stops in a second and says so; the second blends what is left."""
    if how == "removed":
        space.path("conf/dataset/beta.yaml").unlink()
    else:
        space.edit("conf/dataset/beta.yaml", "mask: assistant", "mask: assistant\nenabled: false")
    done = space.dvc("repro", "blend")
    assert (done.code, done.ran) != (0, [])
    assert "error: beta was removed; params.yaml is up to date now; run the same command again" in done.text
    assert space.repro("blend") == ["blend"]
    assert set(space.metrics("blend")["datasets"]) == {"alpha"}
    assert space.path("build/extract/beta/rows.parquet").exists()
    freed = space.draftmill("gc")
    assert freed.code == 0 and "build/extract/beta" in freed.text, freed.text
    assert not space.path("build/extract/beta").exists()
    assert not any("@beta" in path.read_text(encoding="utf-8") for path in space.root.glob("pipeline/*/dvc.lock"))


def test_rows_added_to_a_file_are_the_only_ones_asked(space: Space) -> None:
    """extract and later of that dataset; answers, and states, of rows that stayed are used again."""
    before = space.path("data/alpha.jsonl").read_text(encoding="utf-8")
    space.edit("conf/dataset/alpha.yaml", "quota: 4", "quota: all")
    rows = before.splitlines(keepends=True)[:5]
    space.write("data/alpha.jsonl", "".join(rows))
    space.repro("generate@alpha")
    space.write("data/alpha.jsonl", "".join(rows) + alpha_rows(2, start=50))
    assert space.repro("blend") == [*stages("alpha"), "blend"]
    assert (asked := space.figures("generate", "alpha"))["asked"] == 2 and asked["reused"] == 5
    assert space.metrics("tokenize", "alpha")["rows_out"] == 7


def test_other_paths_ask_only_what_was_not_answered(space: Space) -> None:
    """A schema that yields the same conversations by another path re-runs the dataset's stages and asks nothing."""
    space.edit("conf/dataset/alpha.yaml", "prompt: question", "prompt: \"$['question']\"")
    assert space.repro("train") == ["extract@alpha", "blend"]
    space.edit("conf/dataset/alpha.yaml", "id: key}", "id: key, meta: {name: key}}")
    ran = space.repro("blend")
    assert ran == ["extract@alpha", "generate@alpha", "tokenize@alpha", "blend"]
    assert (figures := space.figures("generate", "alpha"))["asked"] == 0 and figures["reused"] == 4
    assert not any(name.endswith("@beta") for name in ran)


def test_a_mask_computes_no_state_and_going_back_computes_nothing(space: Space) -> None:
    """tokenize, blend and later; then an earlier commit, which the run-cache serves."""
    space.edit("conf/dataset/beta.yaml", "mask: assistant", "mask: last_assistant")
    assert space.repro() == ["tokenize@beta", "blend", *AFTER_BLEND]
    space.commit("another mask")
    space.git("checkout", "--quiet", "HEAD~1")
    assert space.repro() == []
    assert space.repro() == []


def test_a_share_of_the_blend_and_a_recipe(space: Space) -> None:
    """A share runs blend and later; the drafter's recipe train and later; no dataset's stage."""
    space.edit("conf/blend/default.yaml", 'all: {match: "*", take: all}', 'all: {match: "*", share: 1}')
    space.edit("conf/blend/default.yaml", "size: null", "size: {rows: 5}")
    assert space.repro("blend") == ["blend"]
    assert space.metrics("blend")["train"]["rows"] == 5
    space.edit("conf/blend/default.yaml", "size: {rows: 5}", "size: {rows: 4}")
    assert space.repro("blend") == ["blend"]
    assert space.metrics("blend")["train"]["rows"] == 4
    space.edit("conf/drafter/eagle3_tiny.yaml", "learning_rate:", "# faster\n  learning_rate: 0.002\n  # was")
    assert space.repro("train") == ["train"]


def test_layers_of_another_drafter_compute_only_what_is_missing(space: Space) -> None:
    """states.for re-runs hidden_states of all datasets, for the missing layers, and blend."""
    space.edit("conf/states/default.yaml", "for: [eagle3]", "for: [eagle3, dflash]")
    assert sorted(space.repro("blend")) == ["blend", "hidden_states@alpha", "hidden_states@beta"]
    space.edit("conf/states/default.yaml", "for: [eagle3, dflash]", "for: [eagle3]")
    assert space.repro("blend") == []


def test_the_code_of_one_stage(space: Space) -> None:
    """A changed source file re-runs its stage; an output that comes out the same re-runs nobody else."""
    space.edit("src/draftmill/blend/table.py", "from __future__", "# a remark\nfrom __future__")
    assert space.repro("train") == ["blend"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("conf/sampling/default.yaml", "temperature: 0.0", "temperature: 0.5"),
        ("conf/target/tiny.yaml", "revision: null", "revision: other"),
        ("conf/target/chatml_tools.jinja", None, "{# a remark #}"),
    ],
)
def test_what_decides_every_answer(space: Space, file: str, old: str | None, new: str) -> None:
    """Sampling, target and chat template re-run generate of all datasets; extract stays."""
    text = space.path(file).read_text(encoding="utf-8")
    space.write(file, new + text if old is None else text.replace(old, new))
    ran = space.repro()
    assert {"generate@alpha", "generate@beta"} <= set(ran)
    assert not any(name.startswith("extract") for name in ran)
    assert len(ran) == len(set(ran))


def test_an_override_is_named_and_not_lost(space: Space) -> None:
    """`dvc exp run -S` lives in params.yaml: builds name it, a changed conf/ refuses to drop it, --reset drops it."""
    done = space.dvc("exp", "run", "--set-param", "blend.holdout.salt=other", "blend")
    assert (done.code, done.ran) == (0, ["blend"]), done.text
    assert "overrides in effect: blend.holdout.salt=other" in done.text
    space.edit("conf/dataset/alpha.yaml", "tags: [general]", "tags: [other]")
    refused = space.dvc("repro", "blend")
    assert refused.code != 0
    assert "found: blend.holdout.salt=other" in refused.text and "draftmill compose --reset" in refused.text
    assert space.draftmill("compose", "--reset").code == 0
    assert space.repro("blend") == []
