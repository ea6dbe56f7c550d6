"""The stage as a program: its files, bad input, and that nothing but the rows decides on its bytes."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from extracting import chat, write_rows

from draftmill.extract import mapping, merging, readers, reducing, table
from draftmill.extract.declaration import from_map
from draftmill.extract.run import collected, write_rejects
from draftmill.extract.signature import NUM_PERM, signatures, unpack

ROOT = Path(__file__).parents[1]
SCHEMA = {"turns": {"each": "t"}, "keep": "full", "meta": {"k": "k"}, "expect": {"yield": 0.1}}


def rows(count: int) -> list[dict[str, Any]]:
    """Rows with duplicates, rejects, repeated ids and a secret that nobody declares."""
    made = []
    for i in range(count):
        user = f"question {i % (count - count // 10)} " + "words " * (i % 7)
        made.append(
            {
                "id": f"id{i % (count // 2)}",
                "k": i % 4,
                "secret": f"hidden-{i}",
                "t": chat(("user", user), ("assistant", f"a{i}")),
            }
        )
        made[-1]["t"][0]["secret"] = "hidden-too"
        if i % 23 == 0:
            made[-1]["t"] = [{"role": "assistant", "content": "a", "secret": f"hidden-{i}"}]
    return made


def started(folder: Path, declared: dict[str, Any], **settings: Any) -> subprocess.Popen[str]:
    """Start stages/extract.py for the dataset `toy` in `folder`."""
    composed = {"datasets": {"toy": declared}, "source_mode": "real", "run": {"workers": 1}, **settings}
    (folder / "params.yaml").write_text(yaml.safe_dump(composed))
    command = [sys.executable, "-P", str(ROOT / "stages/extract.py"), "toy"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, stdout=PIPE, stderr=PIPE, text=True, env=environment)


def stage(folder: Path, declared: dict[str, Any], **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    with started(folder, declared, **settings) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "build/extract/toy").iterdir())}


def declared(files: str | list[str], **schema: Any) -> dict[str, Any]:
    return {"source": {"files": files}, "schema": {**SCHEMA, **schema}, "quota": "all", "answer": "dataset"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage")
    write_rows(folder / "b.jsonl", rows(600))
    with open(folder / "b.jsonl", "a", encoding="utf-8") as file:
        file.write('{"t": [{"hidden-broken": 1}\n')
    write_rows(folder / "a.jsonl", rows(200))
    done = stage(folder, declared(["b.jsonl", "a.jsonl"], id="id"))
    assert done.returncode == 0, done.stderr
    return folder


def test_the_files_of_the_stage(built: Path) -> None:
    rows_ = pq.read_table(built / "build/extract/toy/rows.parquet")
    metrics = json.loads((built / "build/extract/toy/metrics.json").read_text())
    rejects = [json.loads(line) for line in (built / "build/extract/toy/rejects.jsonl").read_text().splitlines()]
    assert rows_.schema.names == ["id", "conversation", "tools", "group", "dedup", "signature", "meta"]
    assert metrics["rows_in"] == 801
    assert metrics["rows_out"] == rows_.num_rows
    assert metrics["rows_in"] == metrics["rows_out"] + sum(metrics["dropped"].values())
    assert len(rejects) == sum(metrics["dropped"].values())
    assert metrics["dropped"]["no_user_turn"] == 27 + 9
    ids = rows_["id"].to_pylist()
    assert ids == sorted(set(ids))
    assert metrics["notes"]["repeated_ids"] == sum(name.endswith(")") for name in ids) > 0
    assert {reject["reason"] for reject in rejects} == {
        "no_user_turn",
        "truncated_json",
        "duplicate",
    } or "not_json" in str(rejects)
    assert next(reject for reject in rejects if "json" in reject["reason"])["line"] == 601
    assert all(json.loads(text) in [{"k": k} for k in range(4)] for text in rows_["meta"].to_pylist())
    assert all(len(value) == 32 for column in ("group", "dedup") for value in rows_[column].to_pylist())


def columns(folder: Path, schema: dict[str, Any], made: list[Any], name: str = "toy") -> dict[str, list[Any]]:
    """The columns of rows.parquet, rows in the order of `id: id`."""
    write_rows(folder / "x.jsonl", made)
    raw = {"source": {"files": str(folder / "x.jsonl")}, "schema": {"turns": {"each": "t"}, "id": "id", **schema}}
    with collected(from_map(name, raw, "f", "real")) as outcome:
        table.write(outcome.reduced, folder / "rows.parquet")
    found: dict[str, list[Any]] = pq.read_table(folder / "rows.parquet").to_pydict()
    return found


def test_keys_of_duplicates_and_groups(tmp_path: Path) -> None:
    made = [
        {"id": f"{i}", "issue": issue, "n": [i, i], "t": chat(("system", f"s{i}"), ("user", f"q{i // 2}"))}
        for i, issue in enumerate("aab")
    ]
    plain = columns(tmp_path, {"meta": {"issue": "issue", "all": "n[*]", "none": ["x", "issue"]}}, made)
    assert plain["group"] == plain["dedup"], "the duplicate key, where no group is declared"
    assert [json.loads(text) for text in plain["meta"]] == [
        {"issue": issue, "all": [i, i], "none": issue}
        for i, issue in ((int(name), made[int(name)]["issue"]) for name in plain["id"])
    ]
    assert plain["dedup"] == columns(tmp_path, {}, made, "another")["dedup"], "comparable across datasets"
    declared_ = columns(tmp_path, {"group": "issue", "dedup": ["id", "issue"]}, made)
    assert declared_["group"][0] == declared_["group"][1] != declared_["group"][2]
    assert len(set(declared_["dedup"])) == 3
    other = columns(tmp_path, {"group": "issue", "dedup": "id"}, made, "another")
    assert not set(declared_["group"]) & set(other["group"]), "a value means nothing in another dataset"
    none = columns(tmp_path, {"dedup": "none"}, made)
    assert none["dedup"] == [None] * 3
    assert len(set(none["group"])) == 3


def test_cuts_of_one_row_are_in_one_group(tmp_path: Path) -> None:
    made = [{"id": "r", "t": chat(("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b"))}]
    found = columns(tmp_path, {"keep": {"steps": 2}}, made)
    assert found["id"] == ["r@1", "r@3"]
    assert len(set(found["group"])) == 1
    assert len(set(found["dedup"])) == 2


def test_undeclared_columns_reach_no_output(built: Path) -> None:
    for name, content in outputs(built).items():
        text = (
            str(pq.read_table(built / "build/extract/toy" / name).to_pydict())
            if name.endswith("parquet")
            else content.decode()
        )
        assert "hidden" not in text, name


def test_a_label_that_is_an_object_reaches_no_output(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl", [{"t": [{"role": {"id": "hidden"}, "content": "q"}]}])
    done = stage(tmp_path, declared("x.jsonl"))
    assert done.returncode == 1 and "it holds: {'id': 'hidden'}" in done.stderr, "a person is told, on the screen"
    listed = (tmp_path / ".draftmill/extract/toy.rejects.jsonl").read_text()
    assert json.loads(listed)["label"] == "(an object)"


def test_keys_that_yaml_reads_as_no_text(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl", [{"i": 1, "t": chat((0, "q"), ("x", "a"))}, {"i": 1, "r": 1}])  # type: ignore[arg-type]
    schema = yaml.safe_load("{roles: {0: user, x: assistant}, join: {rows: '@.r == 1', on: i, as: p}}")
    done = stage(tmp_path, {**declared("x.jsonl", **schema), "schema": {"turns": {"each": "t"}, **schema}})
    assert done.returncode == 0, done.stderr


def test_order_of_files_chunks_workers_and_memory_change_no_byte(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outputs(built)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    done = stage(tmp_path, declared(["a.jsonl", "b.jsonl"], id="id"), run={"workers": 2})
    assert done.returncode == 0, done.stderr
    assert outputs(tmp_path) == expected
    # Tiny chunks, runs, buckets and stretches, everything spilled to files, and those merged in several levels.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(readers, "CHUNK_BYTES", 5000)
    monkeypatch.setattr(mapping, "RUN_BYTES", 3000)
    monkeypatch.setattr(reducing, "BUCKET_ROWS", 100)
    monkeypatch.setattr(merging, "FAN", 3)
    with collected(from_map("toy", declared(["b.jsonl", "a.jsonl"], id="id"), "f", "real"), memory=0) as outcome:
        assert len(outcome.reduced.runs) > 3**2
        table.write(outcome.reduced, tmp_path / "rows.parquet", limit=20_000)
        write_rejects(outcome, tmp_path / "rejects.jsonl")
    assert (tmp_path / "rows.parquet").read_bytes() == expected["rows.parquet"]
    lines = (tmp_path / "rejects.jsonl").read_bytes().splitlines()
    assert sorted(lines) == sorted(expected["rejects.jsonl"].splitlines())


def large(folder: Path) -> dict[str, Any]:
    """A source of several chunks, and the settings of a stage with two processes."""
    made = [{"t": chat(("user", f"q{i} " + "x" * 9000), ("assistant", "a")), "k": 1} for i in range(4000)]
    write_rows(folder / "x.jsonl", made)
    return {"declared": declared("x.jsonl"), "run": {"workers": 2}}


def first_run(process: subprocess.Popen[str], scratch: Path) -> Path:
    """The first file that one of the stage's processes writes, named by the process."""
    while not (found := list(scratch.glob("*/*.run"))):
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    return found[0]


def test_a_killed_stage_leaves_no_process_and_no_space_behind(tmp_path: Path) -> None:
    settings, scratch = large(tmp_path), tmp_path / ".draftmill" / "extract"
    with started(tmp_path, **settings) as process:
        written = first_run(process, scratch)
        process.kill()
        process.communicate(timeout=20)  # ends when the last process that has the pipe ends
    assert written.exists(), "it was killed in the middle"
    done = stage(tmp_path, **settings)
    assert (done.returncode, list(scratch.iterdir())) == (0, []), done.stderr
    assert pq.read_metadata(tmp_path / "build/extract/toy/rows.parquet").num_rows == 4000


def test_a_killed_process_of_the_stage_is_an_error_in_words(tmp_path: Path) -> None:
    with started(tmp_path, **large(tmp_path)) as process:
        written = first_run(process, tmp_path / ".draftmill" / "extract")
        os.kill(int(written.name.partition(".")[0]), signal.SIGKILL)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "conf/run/default.yaml: run.workers: one of the processes was killed" in said
    assert "Traceback" not in said


def test_stretches_are_of_one_size_with_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "x.jsonl", [{"t": chat(("user", f"q{i}"), ("ai", "a" * 100))} for i in range(8000)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(readers, "CHUNK_BYTES", 20_000)
    raw = {"source": {"files": "x.jsonl"}, "schema": {"turns": {"each": "t"}, "keep": "first_user"}}
    with collected(from_map("toy", raw, "f", "real"), memory=0) as outcome:
        assert len(outcome.reduced.runs) > 50
        size = sum(run.nbytes for run in outcome.reduced.runs)
        sizes = [len(stretch) for stretch in merging.stretches(outcome.reduced, size // 20)]
    assert sum(sizes) == 8000
    assert len(sizes) > 15 and max(sizes) < 3 * 8000 / 20, "ids are hashes, and every run is sorted by them"


def test_bad_input_is_counted_with_reasons(tmp_path: Path) -> None:
    good = json.dumps({"t": chat(("user", "q"), ("assistant", "nul \x00 byte"))}).encode()
    lines = [
        good,
        good[:-9],
        b"[1, 2]",
        b'"text"',
        b"null",
        b'{"t": null}',
        b'{"t": "\xff\xfe"}',
        b'{"t": "raw nul \x00"}',
        b"",
        json.dumps({"t": chat(("user", "x" * 20_000_000), ("assistant", "a"))}).encode(),
        good.replace(b'"q"', b'"other"'),
    ]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    done = stage(tmp_path, declared("x.jsonl", meta={}))
    assert done.returncode == 0, done.stderr
    metrics = json.loads(outputs(tmp_path)["metrics.json"])
    assert metrics["rows_in"] == 10
    assert metrics["rows_out"] == 3, "the two good ones and the long one"
    assert metrics["dropped"] == {
        "truncated_json": 1,
        "row_is_a_list": 1,
        "row_is_no_object": 2,
        "no_user_turn": 1,
        "invalid_utf8": 1,
        "not_json": 1,
    }


def test_a_failure_is_one_clear_message(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl", rows(30))
    done = stage(tmp_path, declared("x.jsonl", turns={"each": "tt"}))
    assert done.returncode == 1
    assert done.stderr.startswith("error: conf/dataset/toy.yaml: schema.turns.each: toy: tt matched nothing in 30 rows")
    assert "dvc checkout pipeline/extract/dvc.yaml:extract@toy" in done.stderr
    listed = (tmp_path / ".draftmill/extract/toy.rejects.jsonl").read_text().splitlines()
    assert len(listed) == 30
    assert json.loads(listed[0])["reason"] == "no_user_turn"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "build/extract/toy/rows.parquet").exists()
    missing = stage(tmp_path, declared("y.jsonl"))
    assert (missing.returncode, "Traceback" in missing.stderr) == (1, False)
    assert missing.stderr.startswith("error: conf/dataset/toy.yaml: source: y.jsonl: ")


def test_the_stage_starts_without_heavy_libraries(tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "datasets", "pandas", "scipy", "datasketch")
    code = f"import sys, draftmill.extract.run; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_schema_can_be_sent_to_another_process() -> None:
    raw = declared("x.jsonl", where={"a": 1}, roles={"x": "drop"}, decode=["t"], tools={"path": "u", "twice": "strip"})
    raw["schema"]["turns"] = [{"each": "t", "role": {"@.a == 1": "user", "else": "drop"}, "text": ["b", "c"]}]
    schema = from_map("toy", raw, "f", "real").schema
    copy = pickle.loads(pickle.dumps(schema))
    assert (copy.roles, copy.decode, copy.tools) == (schema.roles, schema.decode, schema.tools)
    assert copy.blocks[0].role.rules[0][0].canonical == schema.blocks[0].role.rules[0][0].canonical


# -- signatures -----------------------------------------------------------------------------------


def jaccard(one: str, other: str) -> float:
    """The share of equal positions of the signatures of two texts."""
    first, second = signatures([one.encode(), other.encode()])
    return float((first == second).mean())


def test_signatures_estimate_similarity() -> None:
    words = [f"word{i}" for i in range(400)]
    text, half = " ".join(words[:200]), " ".join(words[100:300])
    assert jaccard(text, text.upper()) == 1
    assert abs(jaccard(text, half) - 1 / 3) < 0.15
    assert jaccard(text, " ".join(words[200:])) < 0.1
    assert jaccard(text, text.replace("word50", "other")) > 0.9


def test_a_signature_depends_on_its_text_alone() -> None:
    texts = [f"text {i} ".encode() * (i % 50) for i in range(300)] + ["日本語".encode(), b"", b"   "]
    together = signatures(texts)
    assert together.shape == (303, NUM_PERM)
    assert all(np.array_equal(signatures([text])[0], row) for text, row in zip(texts, together, strict=True))
    assert np.array_equal(unpack(together[5].astype("<u4").tobytes()), together[5])
