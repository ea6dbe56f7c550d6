"""plan, funnel, sweeps and their parts."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from tinybuild import AFTER_BLEND, Space, copied, new

from draftmill import __version__, funnel
from draftmill.sweep import compare
from draftmill.sweep.jobs import Result
from draftmill.sweep.scaling import fit


def result(share: str, drafter: str, length: float, **more: object) -> Result:
    """A finished job with an interval of 0.2."""
    names = ("accept_length", "accept_length_low", "accept_length_high", "accept_length_untrained")
    metrics = dict(zip(names, (length, length - 0.1, length + 0.1, 1.0), strict=True))
    overrides = (f"blend.share={share}", f"drafter={drafter}", "states.for=[eagle3,dflash]")
    return Result(overrides=overrides, experiment=f"sweep-{share}{drafter}", metrics=metrics, rows=1000, **more)  # type: ignore[arg-type]


RESULTS = [result("0.1", "eagle3", 1.5), result("0.2", "eagle3", 1.8), result("0.1", "dflash", 1.6)]
FAILED = Result(overrides=("blend.share=0.2", "drafter=dflash"), experiment="", metrics={}, error="it broke")


def test_the_comparison_is_ranked_and_shows_what_was_swept() -> None:
    """Only keys that differ are columns; the best job first, failed ones last."""
    header, *lines = compare.table([*RESULTS, FAILED])
    assert header[:2] == ["blend.share", "drafter"]
    assert [line[:2] for line in lines] == [["0.2", "eagle3"], ["0.1", "dflash"], ["0.1", "eagle3"], ["0.2", "dflash"]]
    assert lines[0][header.index("accept length")] == "1.800"
    assert lines[-1][header.index("accept length")] == "failed"


def test_the_comparison_is_written_as_table_and_page(tmp_path: Path) -> None:
    """comparison.csv has every job; comparison.html stands alone."""
    curve = fit([100, 200, 400, 800], [1.2, 1.4, 1.5, 1.55])
    for by_size in (None, curve):
        compare.write(tmp_path, [*RESULTS, FAILED], by_size)
        with open(tmp_path / "comparison.csv", encoding="utf-8") as file:
            assert len(list(csv.reader(file))) == 5
        page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
        assert "accept length (bars: 95 % interval)" in page and 'src="http' not in page


def test_the_scaling_fit_finds_the_curve_it_was_given() -> None:
    """Points on limit - scale · rows^-exponent give these back; fewer than three sizes give nothing."""
    sizes = [1000, 2000, 4000, 8000]
    curve = fit(sizes, [2.5 - 40 * size**-0.5 for size in sizes])
    assert curve is not None and curve.error < 1e-6
    assert math.isclose(curve.limit, 2.5, rel_tol=1e-3) and math.isclose(curve.exponent, 0.5, rel_tol=1e-3)
    assert math.isclose(curve.at(16000), 2.5 - 40 * 16000**-0.5, rel_tol=1e-3)
    assert fit([1000, 1000, 2000], [1.0, 1.1, 1.2]) is None


def test_the_funnel_shows_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that have not run leave a dash; the last line adds up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAFTMILL_KEEP", raising=False)
    Path("params.yaml").write_text("dataset_names: [a, b]\n", encoding="utf-8")
    for name, rows in (("a", 10), ("b", 2000)):
        folder = Path("build/extract") / name
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps({"rows_in": rows, "rows_out": rows - 1}), encoding="utf-8")
    lines = funnel.table().splitlines()
    assert lines[2].split() == ["a", "10", "9", *["-"] * 8]
    assert lines[-1].split() == ["total", "2,010", "2,008", *["-"] * 8]
    assert funnel.outcome() == []


def test_plan_says_what_would_run_and_changes_nothing(tmp_path: Path) -> None:
    """Up to date, then with an override, then with a changed file and a new dataset."""
    space = copied(tmp_path)
    before = space.path("params.yaml").read_bytes()
    done = space.draftmill("plan")
    assert done.code == 0 and done.text.startswith("up to date"), done.text
    done = space.draftmill("plan", "blend.holdout.salt=other", "datasets.alpha.quota=8")
    assert "generate: quota changed (alpha)" in done.text, done.text
    assert "blend: blend changed; after generate; after tokenize; after hidden_states" in done.text
    assert next(line for line in done.text.splitlines() if line.startswith("alpha ")).split()[1:4] == ["20", "8", "4"]
    space.write("data/alpha.jsonl", space.path("data/alpha.jsonl").read_text(encoding="utf-8") + '{"question": "?"}\n')
    done = space.draftmill("plan", "sampling.temperature=0.5")
    assert "extract: data/alpha.jsonl changed (alpha)" in done.text
    assert "generate: asking changed (beta)" in done.text
    assert space.path("params.yaml").read_bytes() == before


def test_plan_before_anything_was_extracted(tmp_path: Path) -> None:
    """Rows of files here are counted; what only the Hub knows comes after extract."""
    space = new(tmp_path / "project")
    space.write("conf/dataset/beta.yaml", "source: {hub: owner/name, revision: abc}\nschema: {prompt: q}\nquota: all\n")
    space.edit("conf/experiment/tiny.yaml", "source_mode: sample", "source_mode: real")
    space.edit("conf/experiment/tiny.yaml", "quota_cap: 8", "quota_cap: null")
    assert space.draftmill("compose").code == 0
    done = space.draftmill("plan")
    assert done.code == 0, done.text
    alpha, beta = (next(line for line in done.text.splitlines() if line.startswith(name)) for name in ("alpha", "beta"))
    assert alpha.split()[1:5] == ["≤", "20", "4", "4"]
    assert beta.count("after extract") == 5 and "without beta: how much they hold is known after extract" in done.text


def test_every_manifest_says_what_it_was_made_from(tmp_path: Path) -> None:
    """Code, dataset, revision, declaration, target, template and sampling: each stage what applies to it."""
    space = copied(tmp_path)
    made_from = {stage: space.metrics(stage, "alpha")["lineage"] for stage in ("extract", "generate", "tokenize")}
    assert made_from["extract"].keys() == {"version", "dataset", "revision", "declaration"}
    assert made_from["generate"].keys() == {"version", "dataset", "declaration", "target", "engine", "sampling"}
    assert made_from["tokenize"].keys() == {"version", "dataset", "declaration", "target"}
    target = made_from["generate"]["target"]
    assert target == made_from["tokenize"]["target"] and target["name"] and len(target["template"]) == 32
    assert made_from["generate"]["sampling"]["temperature"] == 0.0
    states = json.loads(space.path("build/hidden_states/alpha/manifest.json").read_text(encoding="utf-8"))
    assert states["version"] == __version__ and states["target"]["name"] == target["name"]
    blended = space.metrics("blend")["lineage"]["datasets"]["alpha"]
    assert blended["extract"]["declaration"] == made_from["extract"]["declaration"]
    assert blended["generate"]["sampling"] == made_from["generate"]["sampling"]
    drafter = json.loads(space.path("build/train/drafter/drafter.json").read_text(encoding="utf-8"))["lineage"]
    assert drafter.keys() == {"version", "target", "declaration", "blend"}
    exported = json.loads(space.path("build/export/lineage.json").read_text(encoding="utf-8"))
    assert exported["train"] == drafter and exported["version"] == __version__


@pytest.fixture
def swept(tmp_path: Path) -> Space:
    """A built project with two rules that share the blend."""
    space = copied(tmp_path)
    space.edit("conf/blend/default.yaml", "size: null", "size: {rows: 4}")
    shared = 'beta: {match: beta, share: 1}\n  rest: {match: "*", share: 1}'
    space.edit("conf/blend/default.yaml", 'all: {match: "*", take: all}', shared)
    space.edit("conf/states/default.yaml", "for: [eagle3]", "for: [eagle3, dflash]")
    space.repro()
    space.commit("ready to be swept")
    return space


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_sweep_compares_resumes_and_leaves_no_trace(swept: Space) -> None:
    """Three shares by two drafters, then one that cannot work: nothing is run twice; the workspace is as before."""
    before = {
        name: swept.path(name).read_bytes()
        for name in ("params.yaml", "dvc.lock", "pipeline/hidden_states/dvc.lock", "build/evaluate/metrics.json")
    }
    command = [str(swept.python), "-m", "draftmill.sweep", "--multirun", "drafter=eagle3_tiny,dflash_tiny"]
    done = swept.run(*command, "blend.allocate.beta.share=0.5,1,2")
    assert done.code == 0, done.text
    ran = Counter(done.ran)
    assert ran.keys() == {"blend", *AFTER_BLEND} and ran["blend"] == 2 and ran["train"] == 5, ran  # share 1 was there
    (table,) = swept.path("multirun").rglob("comparison.csv")
    assert len(table.read_text(encoding="utf-8").splitlines()) == 7
    assert {name: swept.path(name).read_bytes() for name in before} == before
    again = swept.run(*command, "blend.allocate.beta.share=0.5,1,-1")
    assert again.code == 1 and again.ran == []
    assert again.text.count("(from an earlier run)") == 4
    assert "2 of 6 jobs failed" in again.text
    assert {name: swept.path(name).read_bytes() for name in before} == before


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_size_sweep_fits_a_curve(swept: Space) -> None:
    """Four sizes of the workspace's own blend."""
    done = swept.run(str(swept.python), "-m", "draftmill.sweep", "size")
    assert done.code == 0, done.text
    assert "fit:" in done.text, done.text
    (table,) = swept.path("multirun").rglob("comparison.csv")
    with open(table, encoding="utf-8") as file:
        assert {int(line["rows"]) for line in csv.DictReader(file)} == {1, 2, 4}
