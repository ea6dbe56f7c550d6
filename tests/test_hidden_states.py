"""The stage: exact states, only missing rows computed, the same bytes after a kill, damage found and rebuilt."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from states import LAYERS, Counting, make_job, make_model, make_rows, reference, write_tokens

from draftmill.errors import BuildError, ConfigError, DataError, guard
from draftmill.hidden_states import States, stage
from draftmill.hidden_states.manifest import adopt, collect, load_manifest
from draftmill.hidden_states.store import Reader, verify

OUT = Path("build/hidden_states/d")
KEPT = Path(".draftmill/states/store0")


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAFTMILL_KEEP", raising=False)


@pytest.fixture
def engine(model: Any) -> Counting:
    return Counting(model)


def never() -> Any:
    raise AssertionError("the model was loaded though nothing is missing")


def places() -> list[dict[str, Any]]:
    return list(pq.read_table(OUT / "index.parquet").to_pylist())


def contents() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(OUT.iterdir())}


def check_states(model: Any, rows: list[Any], layers: tuple[int, ...]) -> None:
    """Every stored row equals transformers' own states; the last one is before the norm."""
    reader = Reader(OUT)
    assert reader.layers == layers
    for place, ids in zip(places(), rows, strict=True):
        at = (place["shard"], place["offset"], place["length"])
        aux, last = reader.read(*at)
        wanted, normed = reference(model, ids, layers)
        torch.testing.assert_close(aux, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.model.norm(last), normed, rtol=1e-4, atol=1e-4)
        assert reader.ids(*at).tolist() == ids.tolist()


class TestStates:
    def test_every_row_is_exact(self, model: Any, engine: Counting) -> None:
        rows = make_rows(40)
        write_tokens("d", rows)
        stage.build(make_job(recheck_rows=3), engine)
        check_states(model, rows, (2, 4, 5))
        manifest = load_manifest(OUT)
        assert (manifest.rows, manifest.tokens) == (40, sum(map(len, rows)))
        assert len(manifest.shards) > 1 and verify(OUT) == manifest.bytes

    def test_bfloat16_is_rounded_float32(self, model: Any, engine: Counting) -> None:
        rows = make_rows(3)
        write_tokens("d", rows)
        stage.build(make_job(dtype="bfloat16", recheck_rows=3), engine)
        aux, last = Reader(OUT).read(*(places()[1][key] for key in ("shard", "offset", "length")))
        assert aux.dtype == last.dtype == torch.bfloat16
        torch.testing.assert_close(aux.float(), reference(model, rows[1], (2, 4, 5))[0], rtol=5e-3, atol=1e-6)

    def test_the_embedding_and_every_other_layer(self, model: Any, engine: Counting) -> None:
        rows = make_rows(5)
        write_tokens("d", rows)
        stage.build(make_job(for_=[], layers=[7, 0, 1]), engine)
        check_states(model, rows, (0, 1, 7))

    def test_equal_rows_are_computed_once(self, engine: Counting) -> None:
        rows = make_rows(4)
        write_tokens("d", [*rows, *rows])
        stage.build(make_job(), engine)
        assert engine.rows == 4 and len(places()) == 8

    def test_padding_stays_below_five_percent(self, engine: Counting) -> None:
        rows = make_rows(300, longest=200)
        write_tokens("d", rows)
        stage.build(make_job(shard_gb=1.0, batch_tokens=2048), engine)
        assert sum(map(len, rows)) >= 0.95 * engine.tokens

    def test_no_rows_at_all(self) -> None:
        write_tokens("d", [])
        stage.build(make_job(), never)
        assert load_manifest(OUT).shards == {} and places() == []

    def test_a_reader_chooses_layers_in_its_own_order(self, model: Any, engine: Counting) -> None:
        rows = make_rows(2)
        write_tokens("d", rows)
        stage.build(make_job(), engine)
        aux, _ = Reader(OUT, layers=(5, 2)).read(*(places()[0][key] for key in ("shard", "offset", "length")))
        torch.testing.assert_close(aux, reference(model, rows[0], (5, 2))[0], rtol=1e-4, atol=1e-5)
        with pytest.raises(DataError, match=r"layers \[3\] were not captured"):
            Reader(OUT, layers=(3,))


class TestIncremental:
    def test_a_larger_quota_computes_the_new_rows_only(self, model: Any, engine: Counting) -> None:
        write_tokens("d", make_rows(30))
        stage.build(make_job(), engine)
        before = {path.name: path.stat().st_ino for path in OUT.glob("shard-*")}
        write_tokens("d", make_rows(45))
        stage.build(make_job(), engine)
        assert engine.rows == 45
        check_states(model, make_rows(45), (2, 4, 5))
        assert before.items() <= {path.name: path.stat().st_ino for path in OUT.glob("shard-*")}.items()
        figures = json.loads(Path(".draftmill/runs/hidden_states/d.json").read_text())
        assert (figures["captured"], figures["reused"]) == (15, 30)

    def test_going_back_computes_nothing_and_gives_the_same_bytes(self, engine: Counting) -> None:
        write_tokens("d", make_rows(30))
        stage.build(make_job(), engine)
        small = contents()
        write_tokens("d", make_rows(45))
        stage.build(make_job(), engine)
        large = contents()
        for rows, wanted in ((30, small), (45, large)):
            write_tokens("d", make_rows(rows))
            stage.build(make_job(), never)
            assert contents() == wanted

    def test_another_drafter_adds_its_layers_and_leaves_the_others(self, model: Any, engine: Counting) -> None:
        rows = make_rows(30)
        write_tokens("d", rows)
        stage.build(make_job(), engine)
        eagle = contents()
        stage.build(make_job(for_=["eagle3", "dflash"]), engine)
        check_states(model, rows, (2, 3, 4, 5, 6))
        assert {name for name in eagle if name.startswith("shard")} <= set(contents())
        added = [part for part in load_manifest(OUT).parts() if not part["last"]]
        assert {tuple(part["layers"]) for part in added} == {(3, 6)}
        stage.build(make_job(), never)
        assert contents() == eagle

    def test_layers_are_added_though_fewer_rows_are_wanted(self, model: Any, engine: Counting) -> None:
        write_tokens("d", make_rows(30))
        stage.build(make_job(), engine)
        write_tokens("d", make_rows(7))
        stage.build(make_job(for_=["dflash"]), engine)
        check_states(model, make_rows(7), (2, 3, 4, 5, 6))

    def test_datasets_share_equal_rows(self, engine: Counting) -> None:
        for dataset in ("a", "b"):
            write_tokens(dataset, make_rows(10))
            stage.build(make_job(dataset), engine)
        assert engine.rows == 10

    def test_the_order_of_rows_and_the_batch_size_move_no_row(self, engine: Counting) -> None:
        rows = make_rows(30)
        write_tokens("d", rows)
        stage.build(make_job(batch_tokens=64), engine)
        shards = {place["fingerprint"]: place["shard"] for place in places()}
        write_tokens("d", rows[::-1])
        Path(".draftmill").rename("other")
        stage.build(make_job(batch_tokens=500), engine)
        assert shards == {place["fingerprint"]: place["shard"] for place in places()}


KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
from states import *
from draftmill.hidden_states import stage
from draftmill.hidden_states.shards import Store
written, write = [], Store.write
def once(self, *args, **more):
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(write(self, *args, **more))
    return written[-1]
Store.write = once
stage.build(make_job(), Counting(make_model()))
"""


def test_a_killed_build_goes_on_and_gives_the_same_bytes(model: Any, engine: Counting) -> None:
    write_tokens("d", make_rows(40))
    program = KILLED.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    kept = sorted(path.name for path in KEPT.glob("shard-*.safetensors"))
    assert len(kept) == 2
    stage.build(make_job(), engine)
    assert engine.rows < 40
    resumed = contents()
    Path(".draftmill").rename("killed")
    stage.build(make_job(), engine)
    assert contents() == resumed


class TestDamage:
    @pytest.fixture(autouse=True)
    def built(self, engine: Counting) -> None:
        write_tokens("d", make_rows(30))
        stage.build(make_job(), engine)
        engine.rows = 0

    @staticmethod
    def flip(path: Path, at: int = -200) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    def test_a_truncated_shard_is_named(self) -> None:
        path = sorted(OUT.glob("shard-*"))[1]
        os.truncate(path, 1000)
        with pytest.raises(DataError, match="is damaged") as caught:
            Reader(OUT)
        assert caught.value.file == str(path) and "dvc repro pipeline/hidden_states/dvc.yaml:hidden_states@d" in str(
            caught.value
        )

    def test_a_missing_shard_is_named(self) -> None:
        path = sorted(OUT.glob("shard-*"))[0]
        path.unlink()
        with pytest.raises(DataError, match="no file"):
            Reader(OUT)

    def test_every_flipped_byte_of_the_states_is_found_at_the_read(self) -> None:
        place = places()[0]
        at = (place["shard"], place["offset"], place["length"])
        path = next(OUT.glob(f"{place['shard']}-*"))
        whole, header = path.read_bytes(), 8 + int.from_bytes(path.read_bytes()[:8], "little")
        size = place["length"] * 3 * 32 * 4
        for byte in np.random.default_rng(0).integers(0, size, 20):
            self.flip(path, header + place["offset"] * 3 * 32 * 4 + int(byte))
            with pytest.raises(DataError, match="checksum of the row"):
                Reader(OUT).read(*at)
            path.write_bytes(whole)
        Reader(OUT).read(*at)

    def test_verify_finds_what_no_row_holds(self) -> None:
        path = sorted(OUT.glob("shard-*"))[0]
        data = path.read_bytes()
        place = data.index(b'"__metadata__"')
        path.write_bytes(data[:place] + b'"__metadatA__"' + data[place + 14 :])
        with pytest.raises(DataError):
            verify(OUT)

    def test_a_damaged_file_is_no_longer_write_protected(self) -> None:
        """DVC checks its copy (a hard link of this file) only if it is not: the next build then repairs both."""
        path = sorted(OUT.glob("shard-*"))[0]
        path.chmod(0o444)
        os.truncate(path, 10)
        with pytest.raises(DataError):
            Reader(OUT)
        assert path.stat().st_mode & 0o200

    @pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
    def test_the_stage_names_and_rebuilds_it(self, how: str, engine: Counting, capsys: Any) -> None:
        before = contents()
        path = sorted(KEPT.glob("shard-*.safetensors"))[0]
        if how == "flip":
            self.flip(path)
        elif how == "truncate":
            os.truncate(path, 100)
        else:
            path.unlink()
        stage.build(make_job(), engine)
        assert f"{path}" in (said := capsys.readouterr().out) and "built again" in said
        assert 0 < engine.rows < 30 and contents() == before

    def test_a_damaged_shard_with_rows_of_the_past_does_not_stop_a_build(self, model: Any, engine: Counting) -> None:
        write_tokens("d", make_rows(5))
        stage.build(make_job(), never)
        for path in KEPT.glob("shard-*.safetensors"):
            os.truncate(path, 100)
        stage.build(make_job(), engine)
        assert engine.rows == 5
        check_states(model, make_rows(5), (2, 4, 5))

    def test_a_shard_of_another_target_is_refused(self, engine: Counting) -> None:
        with pytest.raises(DataError, match="of another target"):
            Reader(OUT, weights="w1")
        Reader(OUT, weights="w0")
        manifest = json.loads((OUT / "manifest.json").read_text())
        manifest["target"]["states"] = "store1"
        (OUT / "manifest.json").write_text(json.dumps(manifest))
        place = places()[0]
        with pytest.raises(DataError, match="of another target or dtype"):
            Reader(OUT).read(place["shard"], place["offset"], place["length"])

    def test_a_shard_of_another_store_is_not_used(self, engine: Counting, capsys: Any) -> None:
        KEPT.rename(KEPT.with_name("store1"))
        work = make_job()
        work.target["states"] = "store1"
        stage.build(work, engine)
        assert engine.rows == 30 and "of another store" in capsys.readouterr().out

    def test_an_unreadable_description_is_said_and_replaced(self, engine: Counting, capsys: Any) -> None:
        before = contents()
        path = sorted(KEPT.glob("shard-*.json"))[0]
        path.write_text("{")
        stage.build(make_job(), engine)
        assert f"{path} cannot be read" in capsys.readouterr().out
        assert 0 < engine.rows < 30 and contents() == before

    def test_places_that_are_no_row(self) -> None:
        place = places()[0]
        with pytest.raises(DataError, match="has no row"):
            Reader(OUT).read(place["shard"], place["offset"], place["length"] + 1)
        with pytest.raises(DataError, match="no shard 'x'"):
            Reader(OUT).read("x", 0, 1)

    def test_an_incomplete_output(self) -> None:
        (OUT / "manifest.json").unlink()
        with pytest.raises(DataError, match="not complete"):
            Reader(OUT)


class TestRecheck:
    def test_other_weights_under_the_same_name_are_found(self) -> None:
        write_tokens("d", make_rows(10))
        stage.build(make_job(), Counting(make_model(seed=0)))
        write_tokens("d", make_rows(20))
        with pytest.raises(BuildError, match="differs at layer 2") as caught:
            stage.build(make_job(recheck_rows=20), Counting(make_model(seed=1)))
        assert "weights changed" in str(caught.value) and "rm -r .draftmill/states/store0" in str(caught.value)
        assert not (OUT / "manifest.json").exists()

    def test_slightly_trained_weights_are_found(self) -> None:
        write_tokens("d", make_rows(10))
        model = make_model()
        stage.build(make_job(), Counting(model))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.02)
        write_tokens("d", make_rows(11))
        with pytest.raises(BuildError, match="computed again"):
            stage.build(make_job(recheck_rows=11), Counting(model))


class TestDisk:
    def test_what_cannot_fit_is_refused_before_the_model_is_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write_tokens("d", make_rows(10))
        usage = type("Usage", (), {"free": 1000})
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
        with pytest.raises(BuildError, match="do not fit") as caught:
            stage.build(make_job(), never)
        assert "1 kB free" in str(caught.value) and not any(OUT.iterdir())

    def test_a_disk_that_fills_meanwhile_ends_with_a_sentence(
        self, engine: Counting, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        write_tokens("d", make_rows(10))
        monkeypatch.setattr("os.posix_fallocate", full)
        with pytest.raises(SystemExit) as caught:
            guard(lambda: stage.build(make_job(), engine))
        assert caught.value.code == 1 and "no space left" in capsys.readouterr().err
        assert not list(KEPT.glob("*shard*"))

    def test_sizes(self) -> None:
        assert [stage.size(n) for n in (12, 1500, 2.5e9, 3e12)] == ["12 bytes", "1.5 kB", "2.5 GB", "3 TB"]

    def test_it_says_bytes_per_token_and_free_disk(self, engine: Counting, capsys: Any) -> None:
        write_tokens("d", make_rows(10))
        stage.build(make_job(), engine)
        said = capsys.readouterr().out
        assert "0.5 KiB a token" in said and " free" in said and "10 rows captured, 0 reused" in said


class TestKept:
    def test_adopt_stores_a_shard_once(self, engine: Counting) -> None:
        write_tokens("d", make_rows(30))
        stage.build(make_job(), engine)
        cache = Path("cache")
        cache.mkdir()
        for path in OUT.glob("shard-*"):  # what DVC does: a copy into its cache, and a link back
            (cache / path.name).write_bytes(path.read_bytes())
            path.unlink()
            path.hardlink_to(cache / path.name)
        assert adopt(OUT) == sum(path.stat().st_size for path in cache.iterdir())
        assert all((KEPT / path.name).samefile(path) for path in cache.iterdir())
        assert adopt(OUT) == 0

    def test_adopt_through_symbolic_links(self, engine: Counting) -> None:
        write_tokens("d", make_rows(5))
        stage.build(make_job(), engine)
        path = next(OUT.glob("shard-*"))
        copy = Path("copy").absolute()
        copy.write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(copy)
        assert adopt(OUT) > 0 and (KEPT / path.name).samefile(copy) and not (KEPT / path.name).is_symlink()

    def test_adopt_never_takes_an_altered_file(self, engine: Counting) -> None:
        write_tokens("d", make_rows(5))
        stage.build(make_job(), engine)
        path = next(OUT.glob("shard-*"))
        data = bytearray(path.read_bytes())
        path.unlink()
        data[-1] ^= 1
        path.write_bytes(data)
        assert adopt(OUT) == 0 and not (KEPT / path.name).samefile(path)

    def test_collect_keeps_what_is_used(self, engine: Counting) -> None:
        write_tokens("d", make_rows(30))
        stage.build(make_job(), engine)
        names = sorted(path.name for path in KEPT.glob("shard-*.safetensors"))
        size = sum((KEPT / name).stat().st_size for name in names[1:])
        assert collect({names[0]}) == size
        assert [path.name for path in KEPT.glob("shard-*.safetensors")] == names[:1]
        stage.build(make_job(), engine)

    def test_collect_removes_what_a_killed_build_left(self) -> None:
        KEPT.mkdir(parents=True)
        old, new = KEPT / ".shard-a.safetensors.1.part", KEPT / ".shard-b.safetensors.2.part"
        for path in (old, new):
            path.write_bytes(b"x" * 100)
        os.utime(old, (0, 0))
        assert collect(set()) == 100 and new.exists() and not old.exists()


class TestSettings:
    def test_the_union_of_layers(self) -> None:
        assert States(for_=["eagle3", "dflash"]).layer_set(30) == (2, 9, 15, 21, 27, 28)
        assert States(for_=["eagle3"]).bytes_per_token(30, 576) == 4 * 576 * 2 + 4
        assert States(for_=["eagle3"], layers=[30, 0], dtype="float32").layer_set(30) == (0, 2, 15, 27, 30)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [({"for_": []}, "names no layer"), ({"shard_gb": 0.0}, "above 0")],
    )
    def test_bad_settings(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            States(**({"for_": ["eagle3"]} | changes))

    def test_layers_that_do_not_exist(self, tiny_target: Any) -> None:
        states, run = States(for_=["eagle3"], layers=[9]), make_job().run
        with pytest.raises(ConfigError, match=r"layers \[9\] do not exist: .* 0 to 8"):
            stage.job("d", states, run, tiny_target)

    def test_targets_and_dtypes_have_stores_of_their_own(self, tiny_target: Any) -> None:
        run = make_job().run
        targets = (tiny_target, dataclasses.replace(tiny_target, revision="other"))
        settings = [States(for_=["eagle3"], dtype="float32"), States(for_=["eagle3"], dtype="bfloat16")]
        stores = {stage.job("d", states, run, target).target["states"] for states in settings for target in targets}
        assert len(stores) == 4
        more_layers = stage.job("d", States(for_=["dflash"], dtype="float32"), run, tiny_target)
        assert more_layers.target["states"] in stores

    def test_the_tiny_target_for_real(self, tiny_target: Any) -> None:
        work = stage.job("d", States(for_=["dflash"]), make_job(recheck_rows=2).run, tiny_target)
        write_tokens("d", make_rows(6))
        stage.build(work, lambda: stage.engine(work, tiny_target, "cpu"))
        assert (work.num_layers, work.hidden_size) == (LAYERS, 64) and Reader(OUT).layers == (2, 3, 4, 5, 6)
