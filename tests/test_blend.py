"""The stage: what is chosen, held out, dropped and written, and that none of it depends on what should not matter."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blending import Row, blend_again, chosen, digest, dropped, metrics, rows, run, table, write_dataset, write_extract
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftmill.blend import Holdout, write
from draftmill.blend.contamination import Grams
from draftmill.blend.holdout import is_heldout
from draftmill.blend.overlap import Pair, overlap
from draftmill.blend.write import SCHEMA
from draftmill.errors import BuildError, DataError

NO_HOLDOUT = {"fraction": 0.0}
SENTENCE = "explain in a few words how the tides of the sea follow the moon around the turning earth every single day"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class TestOutput:
    def test_a_row_carries_all_that_training_reads(self) -> None:
        run({"a": rows("a", 5, tokens=12, trainable=5)}, holdout=NO_HOLDOUT)
        assert pq.read_schema("build/blend/train.parquet").names == SCHEMA.names
        made = {row["id"]: row for row in table()}
        assert [row["position"] for row in table()] == list(range(5))
        for i, source in enumerate(rows("a", 5, tokens=12, trainable=5)):
            row = made[source.id]
            assert row["input_ids"] == source.ids and row["length"] == 12 and row["copy"] == 0
            assert row["loss_mask"] == [{"start": 7, "length": 5}] and row["n_trainable"] == 5
            assert row["spans"] == [{"turn": 1, "start": 7, "end": 12, "origin": "generated", "flag": None}]
            assert (row["shard"], row["offset"], row["group"], row["dedup"]) == (
                "shard-a",
                12 * i,
                source.group,
                source.dedup,
            )

    def test_counts_sum_and_the_table_says_what_was_done(self) -> None:
        datasets = {"a": rows("a", 300), "b": rows("b", 40, trainable=6), "c": rows("c", 10)}
        run(datasets, {"b": {"match": "b", "share": 1}, "a": {"match": "a", "share": 3}}, size={"rows": 80})
        found = metrics()
        assert found["rows_in"] == 350 == found["rows_out"] + sum(found["dropped"].values())
        assert found["train"] == {"rows": 80, "tokens": 800, "trainable_tokens": 60 * 4 + 20 * 6}
        a = found["datasets"]["a"]
        assert (a["requested"], a["feasible"], a["taken"], a["share_rows"], a["rule"]) == (60, 60, 60, 0.75, "a")
        assert a["available"] + a["heldout"] == 300 and found["datasets"]["c"]["dropped"] == {"no_rule": 10}
        with open("build/blend/table.csv", newline="") as file:
            lines = {line["dataset"]: line for line in csv.DictReader(file)}
        assert lines["b"]["trainable_tokens"] == "120" and lines["c"]["taken"] == "0"
        with open("build/blend/lengths.csv", newline="") as file:
            assert next(iter(csv.DictReader(file))) == {"dataset": "a", "tokens": "16", "rows": "60"}

    def test_copies_are_numbered_and_spread_evenly(self) -> None:
        rules = {"a": {"match": "a", "share": 1}}
        run({"a": rows("a", 10)}, rules, size={"rows": 25}, max_repeat=3, holdout=NO_HOLDOUT)
        copies: dict[str, list[int]] = {}
        for row in table():
            copies.setdefault(row["id"], []).append(row["copy"])
        assert sorted(map(len, copies.values())) == [2] * 5 + [3] * 5
        assert all(sorted(own) == list(range(len(own))) for own in copies.values())
        assert metrics()["datasets"]["a"]["repeat"] == 2.5

    def test_the_shuffle_mixes_datasets_and_follows_the_seed(self) -> None:
        datasets = {"a": rows("a", 200), "b": rows("b", 200)}
        run(datasets, holdout=NO_HOLDOUT)
        first = chosen()
        half = sum(name.startswith("a") for name in first[:200])
        assert 70 < half < 130
        blend_again(["a", "b"], seed=1, holdout=NO_HOLDOUT)
        assert chosen() != first and sorted(chosen()) == sorted(first)

    def test_memory_is_bounded_by_buckets_of_which_the_result_does_not_depend(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        datasets = {"a": rows("a", 700), "b": rows("b", 333)}
        run(datasets)
        whole = table()
        monkeypatch.setattr(write, "BUCKET_TOKENS", 1000)
        blend_again(["a", "b"])
        assert table() == whole
        assert pq.ParquetFile("build/blend/train.parquet").num_row_groups > 5
        assert sorted(p.name for p in Path("build/blend").iterdir()) == [
            "dropped.jsonl",
            "heldout.parquet",
            "lengths.csv",
            "metrics.json",
            "table.csv",
            "train.parquet",
        ]

    def test_the_same_configuration_gives_the_same_bytes(self) -> None:
        run({"a": rows("a", 50), "b": rows("b", 20)})
        before = {path.name: path.read_bytes() for path in Path("build/blend").iterdir()}
        write_dataset("b", rows("b", 20), row_group_size=7)
        blend_again(["b", "a"])
        assert before == {path.name: path.read_bytes() for path in Path("build/blend").iterdir()}


class TestSelection:
    def test_a_larger_share_is_a_superset(self) -> None:
        rules = {"a": {"match": "a", "share": 1}, "b": {"match": "b", "share": 1}}
        run({"a": rows("a", 300), "b": rows("b", 300)}, rules, size={"rows": 100})
        small = set(chosen(dataset="a"))
        rules["a"]["share"] = 2
        blend_again(["a", "b"], rules, size={"rows": 100})
        assert small < set(chosen(dataset="a"))

    def test_a_larger_take_is_a_superset(self) -> None:
        run({"a": rows("a", 300)}, {"a": {"match": "a", "take": {"rows": 40}}})
        small = set(chosen())
        blend_again(["a"], {"a": {"match": "a", "take": {"rows": 80}}})
        assert small < set(chosen()) and len(chosen()) == 80

    def test_one_percent_more_rows_keep_98_percent_of_the_sample(self) -> None:
        rules = {"a": {"match": "a", "take": {"rows": 500}}}
        run({"a": rows("a", 5000)}, rules)
        before = set(chosen())
        run({"a": rows("a", 5050)}, rules)
        assert len(before & set(chosen())) >= 490

    def test_tokens_are_trainable_tokens(self) -> None:
        run({"a": rows("a", 100, trainable=7)}, {"a": {"match": "a", "take": {"tokens": 100}}})
        assert metrics()["train"]["trainable_tokens"] == 98

    @pytest.mark.parametrize("infeasible", ["stop", "clip"])
    def test_what_is_not_there(self, infeasible: str, capsys: Any) -> None:
        rules = {"a": {"match": "a", "take": {"rows": 9}}, "b": {"match": "b", "take": "all"}}
        datasets = {"a": rows("a", 5), "b": rows("b", 5)}
        if infeasible == "clip":
            run(datasets, rules, infeasible=infeasible, holdout=NO_HOLDOUT)
            assert len(chosen()) == 10 and "clipped: a: 9 rows requested, 5 feasible" in capsys.readouterr().out
        else:
            with pytest.raises(BuildError, match="a: 9 rows requested, 5 feasible"):
                run(datasets, rules, infeasible=infeasible, holdout=NO_HOLDOUT)
            assert "dataset  rule" in capsys.readouterr().out
            assert not Path("build/blend/train.parquet").exists()

    def test_nothing_at_all(self) -> None:
        with pytest.raises(BuildError, match="has no row"):
            run({"a": rows("a", 5)}, {"a": {"match": "a", "take": {"rows": 0}}})

    def test_files_that_do_not_belong_together(self) -> None:
        write_dataset("a", rows("a", 5))
        index = pq.read_table("build/hidden_states/a/index.parquet")
        pq.write_table(index.slice(1), "build/hidden_states/a/index.parquet")
        with pytest.raises(BuildError, match="its rows are not those of"):
            blend_again(["a"])

    def test_states_of_other_tokens(self) -> None:
        write_dataset("a", rows("a", 5))
        index = pq.read_table("build/hidden_states/a/index.parquet").to_pylist()
        index[2]["fingerprint"] = index[3]["fingerprint"]
        pq.write_table(pa.Table.from_pylist(index), "build/hidden_states/a/index.parquet")
        with pytest.raises(BuildError, match="is about other tokens"):
            blend_again(["a"])


class TestEmptyMasks:
    def test_more_than_expected_stop_the_build(self) -> None:
        with pytest.raises(DataError, match="2 of 50 rows have no token that trains") as caught:
            run({"a": [*rows("a", 48), *rows("z", 2, trainable=0)]})
        assert (caught.value.file, caught.value.key) == ("conf/dataset/a.yaml", "mask")

    def test_few_are_counted(self) -> None:
        run({"a": [*rows("a", 199), *rows("z", 1, trainable=0)]})
        assert metrics()["dropped"] == {"empty_mask": 1} and dropped() == [
            {"dataset": "a", "id": "z00000", "reason": "empty_mask"}
        ]


class TestHoldout:
    @given(st.text(min_size=1), st.floats(0, 0.99), st.floats(0, 0.99))
    def test_a_larger_fraction_moves_nobody_back(self, group: str, one: float, other: float) -> None:
        low, high = sorted((one, other))
        assert is_heldout(group, Holdout(fraction=low)) <= is_heldout(group, Holdout(fraction=high))

    def test_the_fraction_is_met(self) -> None:
        held = sum(is_heldout(str(i), Holdout(fraction=0.1)) for i in range(20_000))
        assert abs(held - 2000) < 150

    def test_the_same_prompt_in_two_datasets_is_on_one_side(self) -> None:
        shared = [f"a question about {digest(str(i))}" for i in range(60)]
        datasets = {
            name: [Row(f"{name}{i:03}", text=text, dedup=None) for i, text in enumerate(shared)] for name in ("a", "b")
        }
        run(datasets, holdout={"fraction": 0.3})
        sides = {side: {name[2:][1:] for name in chosen(side)} for side in ("train", "heldout")}
        assert sides["train"] and sides["heldout"] and not sides["train"] & sides["heldout"]

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
    def test_growth_moves_nobody_across(self, count: int, more: int, seed: int) -> None:
        run({"a": rows("a", count + 1), "b": rows("b", 30)}, holdout={"fraction": 0.4}, seed=seed)
        train, held = set(chosen()), set(chosen("heldout"))
        run({"a": rows("a", count + 1 + more), "b": rows("b", 30)}, holdout={"fraction": 0.4}, seed=seed + 1)
        assert train <= set(chosen()) and held <= set(chosen("heldout"))

    def test_a_train_row_with_the_dedup_key_of_a_held_out_row_is_dropped(self) -> None:
        groups = [f"g{i}" for i in range(200)]
        inside = next(group for group in groups if is_heldout(group, Holdout(fraction=0.3)))
        outside = next(group for group in groups if not is_heldout(group, Holdout(fraction=0.3)))
        same = {"text": "the same question"}
        run(
            {
                "a": [Row("a1", group=outside, **same), *rows("x", 9)],
                "b": [Row("b1", group=inside, **same), *rows("y", 9)],
            },
            holdout={"fraction": 0.3},
        )
        assert "b/b1" in chosen("heldout") and "a/a1" not in chosen()
        assert {"dataset": "a", "id": "a1", "reason": "duplicate", "matched": "b/b1"} in dropped()

    def test_runs_of_one_group_stay_together(self) -> None:
        made = [Row(f"r{i:03}", group=f"issue{i % 20}") for i in range(200)]
        run({"a": made}, holdout={"fraction": 0.3})
        group = {row.id: row.group for row in made}
        sides = [{group[name[2:]] for name in chosen(side)} for side in ("train", "heldout")]
        assert not sides[0] & sides[1] and all(sides)

    def test_no_dataset_outside_the_blend_is_held_out(self) -> None:
        run({"a": rows("a", 50), "b": rows("b", 50)}, {"a": {"match": "a", "take": "all"}}, holdout={"fraction": 0.5})
        assert not chosen("heldout", "b") and chosen("heldout", "a")


class TestExactDuplicates:
    shared = "what does the word serendipity mean and where does it come from?"

    def test_the_first_dataset_by_name_keeps_a_row(self) -> None:
        run({"b": [Row("b1", self.shared), Row("b2")], "a": [Row("a1", self.shared)]}, holdout=NO_HOLDOUT)
        assert sorted(chosen()) == ["a/a1", "b/b2"]
        assert dropped() == [{"dataset": "b", "id": "b1", "reason": "duplicate", "matched": "a/a1"}]

    def test_priority_comes_before_names(self) -> None:
        run(
            {"b": [Row("b1", self.shared), Row("b2")], "a": [Row("a1", self.shared)]},
            declared={"b": {"tags": ["native"]}},
            near_duplicates={"threshold": 0.9, "priority": ["tag:native"]},
            holdout=NO_HOLDOUT,
        )
        assert sorted(chosen()) == ["b/b1", "b/b2"]

    def test_rows_of_one_conversation_are_no_duplicates(self) -> None:
        made = [Row(f"c1#{k}", self.shared, conversation="c1") for k in range(3)]
        run({"a": made, "b": [Row("b1", self.shared)]}, holdout=NO_HOLDOUT)
        assert sorted(chosen()) == ["a/c1#0", "a/c1#1", "a/c1#2"]

    def test_a_row_without_a_key_is_never_a_duplicate(self) -> None:
        made = {name: [Row(f"{name}1", self.shared, dedup=None)] for name in ("a", "b")}
        run(made, holdout=NO_HOLDOUT)
        assert len(chosen()) == 2


class TestNearDuplicates:
    near: dict[str, Any] = {"threshold": 0.7}  # noqa: RUF012

    def test_alike_rows_of_two_datasets(self) -> None:
        datasets = {
            "a": [Row("a1", SENTENCE), *rows("x", 5)],
            "b": [Row("b1", SENTENCE + " please"), Row("b2", "how do I boil an egg without it cracking?")],
        }
        run(datasets, near_duplicates=self.near, holdout=NO_HOLDOUT)
        assert "b/b1" not in chosen() and "b/b2" in chosen() and "a/a1" in chosen()
        (drop,) = dropped()
        assert drop["reason"] == "near_duplicate" and drop["matched"] == "a/a1" and "similarity 0." in drop["span"]

    def test_within_one_dataset_extract_has_decided(self) -> None:
        run(
            {"a": [Row("a1", SENTENCE), Row("a2", SENTENCE + " please")]}, near_duplicates=self.near, holdout=NO_HOLDOUT
        )
        assert len(chosen()) == 2

    def test_a_held_out_row_drops_what_is_like_it_even_in_its_own_dataset(self) -> None:
        groups = [f"g{i}" for i in range(200)]
        inside = next(group for group in groups if is_heldout(group, Holdout(fraction=0.3)))
        outside = next(group for group in groups if not is_heldout(group, Holdout(fraction=0.3)))
        made = [Row("a1", SENTENCE, group=outside), Row("a2", SENTENCE + " please", group=inside), *rows("x", 20)]
        run({"a": made}, near_duplicates=self.near, holdout={"fraction": 0.3})
        assert "a/a2" in chosen("heldout") and "a/a1" not in chosen()

    def test_an_id_with_a_number_sign_is_a_conversation_of_its_own(self) -> None:
        made = [Row("c1", SENTENCE), Row("c1#2", "??"), Row("c1#3")]
        run({"a": [Row("a1", SENTENCE + " please")], "b": made}, near_duplicates=self.near, holdout=NO_HOLDOUT)
        assert sorted(chosen()) == ["a/a1", "b/c1#2", "b/c1#3"]

    def test_texts_without_a_word_are_not_alike(self) -> None:
        datasets = {"a": [Row("a1", "??? !!!")], "b": [Row("b1", "... --- ...")]}
        run(datasets, near_duplicates=self.near, holdout=NO_HOLDOUT)
        assert len(chosen()) == 2

    def test_further_rows_of_a_conversation_use_its_signature(self) -> None:
        made = [Row(f"c1#{k}", SENTENCE, dedup=f"d{k}", conversation="c1") for k in range(2)]
        run(
            {"a": [Row("a1", SENTENCE + " please")], "b": [*made, Row("b2")]},
            near_duplicates=self.near,
            holdout=NO_HOLDOUT,
        )
        assert sorted(chosen()) == ["a/a1", "b/b2"]


class TestDecontamination:
    def test_rows_with_a_piece_of_an_evaluation_text_are_dropped(self) -> None:
        write_extract("gsm", [Row("q1", SENTENCE), Row("q2", "Name two rivers.")])
        datasets = {
            "a": [
                Row("a1", "Please, for my homework: " + SENTENCE.upper() + "! Thanks."),
                Row("a2", SENTENCE[:30] + " in short"),
                Row("a3", "name two rivers"),
                Row("a4", "name two rivers of Italy"),
                *rows("x", 5),
            ]
        }
        declared = {"gsm": {"role": "evaluation"}}
        run(datasets, declared=declared, decontaminate={"against": ["gsm"], "ngram": 8}, holdout=NO_HOLDOUT)
        assert {name for name in chosen() if name.startswith("a/a")} == {"a/a2", "a/a4"}
        drops = {drop["id"]: drop for drop in dropped()}
        assert drops["a1"]["matched"] == "gsm/q1" and drops["a1"]["span"] == " ".join(SENTENCE.split()[:8])
        assert drops["a3"] == {
            "dataset": "a",
            "id": "a3",
            "reason": "contaminated",
            "matched": "gsm/q2",
            "span": "name two rivers",
        }

    @given(st.lists(st.sampled_from("abcd"), min_size=3, max_size=12), st.lists(st.sampled_from("abcd"), max_size=30))
    def test_it_agrees_with_looking_at_every_window(self, evaluation: list[str], text: list[str]) -> None:
        grams = Grams(3)
        grams.add(" ".join(evaluation), "e/1")
        windows = {tuple(evaluation[i : i + 3]) for i in range(len(evaluation) - 2)}
        found = any(tuple(text[i : i + 3]) in windows for i in range(len(text) - 2))
        assert (grams.match(" ".join(text)) is not None) == found


class TestOverlap:
    def test_pairs_of_extracted_datasets(self) -> None:
        write_extract("a", [Row("a1", SENTENCE), Row("a2", "one and the same"), Row("a3")])
        write_extract("b", [Row("b1", "one and the same"), Row("b2", SENTENCE + " please"), Row("b3")])
        write_extract("c", [Row("c1", "one and the same")])
        assert overlap(["c", "b", "a", "not_extracted"], threshold=0.7) == [
            Pair("a", "b", 1, 1),
            Pair("a", "c", 1, 0),
            Pair("b", "c", 1, 0),
        ]
