"""The generate stage with the engine in process, and the response store."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from generating import answers, figures, metrics, questions, stage, write_params, write_rows

from draftmill.errors import BuildError, ConfigError, UsageError
from draftmill.generate import everything
from draftmill.generate.audit import audit
from draftmill.generate.decode import decode, nucleus
from draftmill.generate.job import settings
from draftmill.generate.request import Answer, Request
from draftmill.generate.settings import Policy, Sampling
from draftmill.generate.stage import build
from draftmill.generate.store import Store, file_system
from draftmill.target import Target, load_model, renderer


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAFTMILL_KEEP", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def model(tiny_target: Target) -> Any:
    torch.set_num_threads(1)
    return load_model(tiny_target, "cpu")


def requests_of(prompts: list[list[int]], limit: int = 20) -> list[Request]:
    return [Request(key=f"{i:032x}", limit=limit, prompt_ids=ids, messages=[]) for i, ids in enumerate(prompts)]


PROMPTS = [[256, *range(65, 65 + n)] for n in (3, 40, 11, 7, 25)]


def test_batched_decoding_gives_what_each_prompt_gives_alone(model: Any) -> None:
    batched = dict(decode(model, requests_of(PROMPTS), Sampling(), [258]))
    for i, ids in enumerate(PROMPTS):
        generated = model.generate(
            torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=258, pad_token_id=258
        )
        assert batched[i] == generated[0, len(ids) :].tolist()


def test_an_answer_ends_with_the_first_end_token_and_rows_leave_as_they_finish(model: Any) -> None:
    plain = dict(decode(model, requests_of(PROMPTS), Sampling(), []))
    eos = plain[0][4]
    ended = list(decode(model, requests_of(PROMPTS), Sampling(), [eos]))
    for i, ids in ended:
        stop = plain[i].index(eos) + 1 if eos in plain[i] else 20
        assert ids == plain[i][:stop]
    lengths = [len(ids) for _, ids in ended]
    assert lengths == sorted(lengths) and lengths[0] < 20


def test_draws_do_not_depend_on_what_is_decoded_beside_them(model: Any) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, top_k=50, seed=3)
    requests = requests_of(PROMPTS)
    together = dict(decode(model, requests, sampling, [258]))
    alone = {i: next(decode(model, [request], sampling, [258]))[1] for i, request in enumerate(requests)}
    assert together == alone
    assert together != dict(decode(model, requests, Sampling(temperature=1.0, seed=4), [258]))


def test_nucleus() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert nucleus(logits, 0.7, None)[0].tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert nucleus(logits, 1.0, 1)[0].tolist() == pytest.approx([1, 0, 0, 0])
    assert nucleus(logits, 1.0, None)[0].tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05])


def test_a_whole_stage(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(9), meta=json.dumps({"kind": "sum"}))
    write_params(workspace, tiny_target, quota=6)
    build("demo")
    rows = answers(workspace)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows) and len(rows) == 6
    drawn = renderer(tiny_target)
    for row in rows:
        question, answer = row["conversation"]
        (turn,) = row["turns"]
        assert row["prompt_ids"] == [drawn.prompt_ids([question], None)]
        assert answer == drawn.parse(row["output_ids"][0])
        assert turn["position"] == 1 and turn["origin"] == "generated" and turn["engine"] == "transformers"
        assert turn["usage"] == {
            "prompt_tokens": len(row["prompt_ids"][0]),
            "completion_tokens": len(row["output_ids"][0]),
        }
        assert (row["group"], row["dedup"], row["meta"]) == ("aa", "bb", '{"kind": "sum"}')
    found = metrics(workspace)
    assert (found["rows_in"], found["rows_out"], found["dropped"]) == (9, 6, {"quota": 3})
    assert (found["requested"], found["available"], found["taken"]) == (6, 9, 6)
    assert found["answer_tokens"]["n"] == 6 and found["lengths_note"]
    assert figures(workspace)["asked"] == 6


def test_only_what_is_missing_is_asked_and_bytes_stay(
    workspace: Path, tiny_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(workspace, questions(9))
    write_params(workspace, tiny_target, quota=9)
    build("demo")
    whole = (workspace / "build/generate/demo/answers.parquet").read_bytes()
    (workspace / ".draftmill/answers.sqlite").unlink()
    (workspace / "build/generate/demo/answers.parquet").unlink()
    write_params(workspace, tiny_target, quota=4)
    build("demo")
    write_params(workspace, tiny_target, quota=9)
    build("demo")
    assert figures(workspace)["asked"] == 5 and figures(workspace)["reused"] == 4
    assert (workspace / "build/generate/demo/answers.parquet").read_bytes() == whole
    monkeypatch.setattr("draftmill.generate.embedded.Embedded._load", lambda self: pytest.fail("the model was loaded"))
    build("demo")
    assert figures(workspace)["asked"] == 0


def test_the_store_comes_back_from_the_last_build(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(5))
    write_params(workspace, tiny_target)
    build("demo")
    first = (workspace / "build/generate/demo/answers.parquet").read_bytes()
    (workspace / ".draftmill/answers.sqlite").unlink()
    build("demo")
    assert figures(workspace)["asked"] == 0
    # As DVC does it: the output is deleted before the stage runs, and stands in the cache that dvc.lock names.
    (workspace / ".draftmill/answers.sqlite").unlink()
    cached = workspace / ".dvc/cache/files/md5/ab/cdef"
    cached.parent.mkdir(parents=True)
    (workspace / "build/generate/demo/answers.parquet").rename(cached)
    lock = "stages: {generate@demo: {outs: [{path: build/generate/demo/answers.parquet, md5: abcdef}]}}"
    locked = workspace / "pipeline/generate/dvc.lock"
    locked.parent.mkdir(parents=True)
    locked.write_text(lock)
    build("demo")
    assert figures(workspace)["asked"] == 0
    assert (workspace / "build/generate/demo/answers.parquet").read_bytes() == first


def test_a_prompt_in_two_datasets_is_asked_once(workspace: Path, tiny_target: Target, capfd: Any) -> None:
    write_rows(workspace, questions(6), dataset="one")
    write_rows(workspace, questions(9), dataset="two")
    write_params(workspace, tiny_target, datasets=["one", "two"])
    everything_without_composing(["one", "two"])
    assert "9 asked, 6 known" in capfd.readouterr().out
    for name in ("one", "two"):
        build(name)
        assert figures(workspace, name)["asked"] == 0


def everything_without_composing(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftmill.compose.ensure.ensure_composed", lambda: None)
        everything.answer(names)


def test_unknown_names_and_missing_rows(workspace: Path, tiny_target: Target) -> None:
    write_params(workspace, tiny_target)
    with pytest.raises(UsageError, match="did you mean 'demo'"):
        everything_without_composing(["dem"])
    with pytest.raises(BuildError, match="extract@demo"):
        build("demo")


def test_the_datasets_own_answers_pass_through(workspace: Path, tiny_target: Target) -> None:
    talk = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    write_rows(workspace, [talk] * 3)
    write_params(workspace, tiny_target, answer_resolved="dataset", keep_resolved="full")
    build("demo")
    (row, *_) = answers(workspace)
    assert row["conversation"] == talk and row["output_ids"] is None
    assert [(turn["position"], turn["origin"]) for turn in row["turns"]] == [(1, "dataset"), (3, "dataset")]
    assert not (workspace / ".draftmill/answers.sqlite").exists()


def test_several_turns_and_tools(workspace: Path, tiny_target: Target) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    talk = [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(("system", "user", "assistant", "user"))]
    write_rows(workspace, [talk] * 2, tools=json.dumps([tool]))
    write_params(workspace, tiny_target, keep_resolved="each_user", sampling=Sampling(max_new_tokens=100))
    build("demo")
    first = answers(workspace)[0]
    drawn = renderer(tiny_target)
    positions = [turn["position"] for turn in first["turns"]]
    assert positions[0] == 2 and len(first["prompt_ids"]) == len(positions)
    for prompt, position in zip(first["prompt_ids"], positions, strict=True):
        assert prompt == drawn.prompt_ids(first["conversation"][:position], [tool])


def test_rejects_are_counted(workspace: Path, tiny_target: Target) -> None:
    rows = [*questions(2), [{"role": "user", "content": "x" * 9000}], [{"role": "assistant", "content": "x"}]]
    write_rows(workspace, rows)
    write_params(workspace, tiny_target, sampling=Sampling(max_new_tokens=4, policy=Policy(truncated="drop")))
    build("demo")
    assert metrics(workspace)["dropped"] == {"too_long": 1, "no_prompt": 1, "truncated": 2}
    rejects = [json.loads(line) for line in (workspace / "build/generate/demo/rejects.jsonl").read_text().splitlines()]
    assert {reject["reason"] for reject in rejects} == {"too_long", "no_prompt", "truncated"}


def test_a_quota_in_tokens_and_one_by_meta(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(40), meta=[json.dumps({"kind": i % 2}) for i in range(40)])
    write_params(workspace, tiny_target, quota={"tokens": 100})
    build("demo")
    taken = metrics(workspace)
    assert taken["answer_tokens"]["n"] == 9 and taken["requested_tokens"] == 100 and taken["requested"] is None
    write_params(workspace, tiny_target, quota={"rows": 2, "by": "kind"})
    build("demo")
    assert sorted(json.loads(row["meta"])["kind"] for row in answers(workspace)) == [0, 0, 1, 1]
    write_params(workspace, tiny_target, quota={"rows": 2, "by": "kin"})
    with pytest.raises(ConfigError, match="did you mean 'kind'"):
        build("demo")


def test_audit(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(4))
    write_params(workspace, tiny_target)
    build("demo")
    with Store(workspace / ".draftmill/answers.sqlite") as store:
        assert audit("demo", settings(), store) == (4, {})
    with sqlite3.connect(workspace / ".draftmill/answers.sqlite") as db:
        db.execute("UPDATE answers SET text = 'other' WHERE rowid = 1")
        db.execute("DELETE FROM answers WHERE rowid = 2")
    db.close()
    with Store(workspace / ".draftmill/answers.sqlite") as store:
        _, found = audit("demo", settings(), store)
    assert {name: len(ids) for name, ids in found.items()} == {"text differs from ids": 1, "not in the store": 1}


def test_killed_in_the_middle_it_goes_on(workspace: Path, tiny_target: Target) -> None:
    write_rows(workspace, questions(40))
    write_params(workspace, tiny_target, sampling=Sampling(max_new_tokens=120), run={"batch_size": 4})
    running = stage(workspace)
    store = workspace / ".draftmill/answers.sqlite"
    deadline = time.monotonic() + 60
    while count(store) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    kept = count(store)
    assert 8 <= kept < 40
    build("demo")
    assert figures(workspace)["reused"] == kept and figures(workspace)["asked"] == 40 - kept


def count(store: Path) -> int:
    if not store.exists():
        return 0
    db = sqlite3.connect(store)
    try:
        return int(db.execute("SELECT COUNT(*) FROM answers").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        db.close()


def entry(ids: list[int], finish: Any = "stop", limit: int = 8) -> Answer:
    return Answer(finish=finish, limit=limit, engine="e", output_ids=ids, usage={"completion_tokens": len(ids)})


KEY = "ab" * 16


def test_the_length_limit_is_not_part_of_the_key(tmp_path: Path) -> None:
    with Store(tmp_path / "answers.sqlite") as store:
        store.put(KEY, entry([1, 2, 3], "length", 3))
        for again in range(2):  # from memory, then from the file
            assert store.get(KEY, 3) == entry([1, 2, 3], "length", 3), again
            assert store.get(KEY, 4) is None
            assert store.get(KEY, 2) == entry([1, 2], "length", 2)
            store.commit()
        store.put(KEY, entry([1, 2, 3, 4], "stop", 8))
        store.commit()
        store.put(KEY, entry([1], "length", 1))
        store.commit()
        assert store.get(KEY, 99) == entry([1, 2, 3, 4], "stop", 8) and len(store) == 1


def test_commits_every_64_answers_or_every_second(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    with Store(path) as store:
        for i in range(130):
            store.put(f"{i:032x}", entry([1]))
        assert count(path) == 128
        store.tick()
        assert count(path) == 128
        time.sleep(1.01)
        store.tick()
        assert count(path) == 130


def test_a_store_that_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(BuildError, match="cannot be opened"):
        Store(tmp_path / "answers.sqlite")


def test_on_a_network_file_system_it_keeps_a_rollback_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    assert file_system(Path("/proc")) == "proc"
    monkeypatch.setattr("draftmill.generate.store.file_system", lambda folder: "nfs4")
    with Store(tmp_path / "answers.sqlite") as store:
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert "network file system" in capfd.readouterr().out
