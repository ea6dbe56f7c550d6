"""Allocation: sums, caps, feasibility, and that more never takes a row away. Mostly property-based."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftmill.blend import Amount, Blend, Rule, count, members
from draftmill.blend.allocate import Allocation, Supply, allocate, apportion
from draftmill.config import build
from draftmill.errors import ConfigError

WEIGHT = st.floats(0.01, 1e6)
WEIGHTS = st.dictionaries(st.sampled_from("abcdefgh"), WEIGHT, min_size=1, max_size=8)


def supply(**rows: int) -> dict[str, Supply]:
    """Datasets with so many rows of 10 trainable tokens each."""
    return {name: Supply([10] * number) for name, number in rows.items()}


def make(rules: dict[str, Any], **more: Any) -> Blend:
    return build(Blend, {"allocate": rules, **more}, file="conf/blend/x.yaml", key="")


def run(blend: Blend, datasets: dict[str, Supply]) -> Allocation:
    rules = members(blend, {name: {} for name in datasets}).rules
    return allocate(blend, rules, datasets)


def feasible(allocation: Allocation) -> dict[str, int]:
    return {name: request.feasible for name, request in allocation.requests.items()}


class TestApportion:
    @given(WEIGHTS, st.integers(0, 10**6))
    def test_the_parts_sum_to_the_total(self, weights: dict[str, float], total: int) -> None:
        assert sum(apportion(total, weights).values()) == total

    @given(st.fixed_dictionaries({"a": WEIGHT, "b": WEIGHT}), st.integers(0, 10**9))
    def test_each_part_is_within_one_seat_of_its_due_for_two(self, weights: dict[str, float], total: int) -> None:
        whole = sum(weights.values())
        for name, part in apportion(total, weights).items():
            assert abs(part - total * weights[name] / whole) <= 1 + 1e-6 * total

    @given(WEIGHTS, st.integers(0, 5000), st.integers(0, 5000), st.data())
    def test_more_in_total_is_less_for_nobody(
        self, weights: dict[str, float], total: int, more: int, data: st.DataObject
    ) -> None:
        caps = {name: data.draw(st.integers(0, 2000)) for name in weights}
        before, after = apportion(total, weights, caps), apportion(total + more, weights, caps)
        assert all(before[name] <= after[name] for name in weights)

    @given(WEIGHTS, st.integers(0, 10**5), st.data())
    def test_caps_hold_and_the_rest_goes_to_the_others(
        self, weights: dict[str, float], total: int, data: st.DataObject
    ) -> None:
        caps = {name: data.draw(st.integers(0, 10**5)) for name in weights}
        parts = apportion(total, weights, caps)
        assert all(0 <= parts[name] <= caps[name] for name in weights)
        assert sum(parts.values()) == min(total, sum(caps.values()))

    @given(WEIGHTS, st.integers(0, 10**5), st.randoms())
    def test_the_order_of_names_changes_nothing(self, weights: dict[str, float], total: int, random: Any) -> None:
        names = list(weights)
        random.shuffle(names)
        assert apportion(total, weights) == apportion(total, {name: weights[name] for name in names})

    def test_equal_weights_differ_by_at_most_one(self) -> None:
        assert sorted(apportion(10, {"a": 1.0, "b": 1.0, "c": 1.0}).values()) == [3, 3, 4]

    def test_fifty_million_tokens_are_split_at_once(self) -> None:
        parts = apportion(50_000_000, {"a": 3.0, "b": 1.0})
        assert parts == {"a": 37_500_000, "b": 12_500_000}

    def test_no_weight_gets_nothing(self) -> None:
        assert apportion(7, {"a": 0.0, "b": 0.0}) == {"a": 0, "b": 0}


class TestSupply:
    def test_tokens_of_repeats(self) -> None:
        own = Supply([5, 3, 2])
        assert [own.tokens_of(n) for n in (0, 1, 3, 4, 7)] == [0, 5, 10, 15, 25]

    @given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 3000))
    def test_rows_for_tokens_is_the_longest_prefix_that_fits(self, trainable: list[int], amount: int) -> None:
        own = Supply(trainable)
        rows = own.rows_for(amount, "tokens")
        assert own.tokens_of(rows) <= amount < own.tokens_of(rows + 1)

    def test_nothing_there(self) -> None:
        own = Supply([])
        assert own.rows_for(10, "tokens") == 0 and own.tokens_of(0) == 0


class TestRules:
    def test_the_example_of_the_manual(self) -> None:
        blend = make(
            {
                "hermes": {"match": "hermes", "take": "all"},
                "infinity": {"match": "infinity", "take": {"rows": 100}},
                "general": {"match": ["ultra", "share"], "share": 0.7},
                "rest": {"match": "*", "share": 0.3, "temperature": 2},
            },
            size={"rows": 200},
        )
        made = run(blend, supply(hermes=19, infinity=400, ultra=300, share=100, code=400, maths=100))
        assert not made.problems
        got = feasible(made)
        assert sum(got.values()) == 200 and got["hermes"] == 19 and got["infinity"] == 100
        assert got["ultra"] + got["share"] == 57 and (got["ultra"], got["share"]) == (43, 14)
        assert (got["code"], got["maths"]) == (16, 8)  # by square roots: 2 to 1

    def test_shares_are_normalized(self) -> None:
        rules = {"a": {"match": "a", "share": 3}, "b": {"match": "b", "share": 1}}
        assert feasible(run(make(rules, size={"rows": 8}), supply(a=9, b=9))) == {"a": 6, "b": 2}

    def test_size_null_is_the_sum_of_what_is_taken(self) -> None:
        made = run(
            make({"a": {"match": "a", "take": {"rows": 5}}, "b": {"match": "*", "take": "all"}}), supply(a=9, b=4)
        )
        assert feasible(made) == {"a": 5, "b": 4} and not made.problems

    def test_size_in_tokens_counts_the_trainable_ones(self) -> None:
        rules = {"a": {"match": "a", "take": {"rows": 3}}, "b": {"match": "*", "share": 1}}
        made = run(make(rules, size={"tokens": "1k"}), supply(a=9, b=200))
        assert made.requests["b"].requested == 1000 - 30 and made.requests["b"].unit == "tokens"

    def test_upsampling_up_to_the_cap(self) -> None:
        rules = {"a": {"match": "a", "share": 0.5}, "b": {"match": "b", "share": 0.5}}
        blend = make(rules, size={"rows": 40}, max_repeat=2)
        assert feasible(run(blend, supply(a=10, b=30))) == {"a": 20, "b": 20}
        assert run(make(rules, size={"rows": 42}, max_repeat=2), supply(a=10, b=30)).problems

    def test_scarcest_uses_no_row_twice(self) -> None:
        rules = {"a": {"match": "a", "share": 0.5}, "b": {"match": ["b", "c"], "share": 0.5, "temperature": 1e9}}
        made = run(make(rules, size="scarcest", max_repeat=5), supply(a=100, b=10, c=40))
        assert feasible(made) == {"a": 20, "b": 10, "c": 10} and not made.problems

    def test_temperature_within_a_take(self) -> None:
        rules = {"all": {"match": "*", "take": {"rows": 30}, "temperature": 2}}
        assert feasible(run(make(rules), supply(a=400, b=100))) == {"a": 20, "b": 10}

    def test_a_full_dataset_leaves_its_part_to_the_others_of_its_rule(self) -> None:
        rules = {"all": {"match": "*", "share": 1, "temperature": 1e9}}
        assert feasible(run(make(rules, size={"rows": 30}), supply(a=400, b=5))) == {"a": 25, "b": 5}


class TestFeasibility:
    def test_more_than_there_is(self) -> None:
        made = run(make({"a": {"match": "a", "take": {"rows": 10}}}), supply(a=4))
        assert feasible(made) == {"a": 4} and made.problems == ["a: 10 rows requested, 4 feasible"]

    def test_takes_above_the_size(self) -> None:
        rules = {
            "a": {"match": "a", "take": "all"},
            "b": {"match": "b", "take": "all"},
            "c": {"match": "c", "share": 1},
        }
        made = run(make(rules, size={"rows": 12}), supply(a=10, b=10, c=5))
        assert "b takes 10 rows, and only 2 of size are left" in made.problems
        assert feasible(made) == {"a": 10, "b": 2, "c": 0}

    def test_takes_below_the_size_without_a_share(self) -> None:
        made = run(make({"a": {"match": "a", "take": "all"}}, size={"rows": 12}), supply(a=10))
        assert made.problems == ["size is 2 rows more than all takes give, and no rule has a share"]

    def test_no_rows_at_all(self) -> None:
        made = run(make({"a": {"match": "a", "take": {"rows": 3}}}), supply(a=0))
        assert feasible(made) == {"a": 0} and made.problems

    @given(st.data())
    def test_sums_and_caps_of_random_blends(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
        datasets = supply(**{name: data.draw(st.integers(0, 300)) for name in names})
        rules = {name: data.draw(_rule(name)) for name in names}
        size = data.draw(st.integers(0, 1000))
        repeat = data.draw(st.integers(1, 3))
        assume(
            sum(rule.get("share", 0) for rule in rules.values()) > 0 or not any("share" in r for r in rules.values())
        )
        made = run(make(rules, size={"rows": size}, max_repeat=repeat), datasets)
        got = feasible(made)
        assert sum(got.values()) <= size
        assert made.problems or sum(got.values()) == size
        assert all(got[name] <= repeat * datasets[name].rows for name in names)
        assert all(got[name] == made.requests[name].requested for name in names) or made.problems

    @given(st.floats(0.01, 1), st.floats(0, 1), st.integers(1, 200))
    def test_a_larger_share_is_a_superset(self, share: float, more: float, size: int) -> None:
        def rows(of_a: float) -> tuple[int, int]:
            rules = {"a": {"match": ["a", "c"], "share": of_a}, "b": {"match": "b", "share": 1}}
            got = feasible(run(make(rules, size={"rows": size}), supply(a=300, b=300, c=30)))
            return got["a"], got["c"]

        before, after = rows(share), rows(share + more)
        assert before[0] <= after[0] and before[1] <= after[1]


def _rule(name: str) -> st.SearchStrategy[dict[str, Any]]:
    takes = st.one_of(st.just("all"), st.builds(lambda n: {"rows": n}, st.integers(0, 400)))
    return st.one_of(
        takes.map(lambda take: {"match": name, "take": take}),
        st.floats(0, 5).map(lambda share: {"match": name, "share": share}),
    )


class TestSettings:
    @pytest.mark.parametrize(
        ("section", "key", "words"),
        [
            ({"allocate": {}}, "", "no rule"),
            ({"allocate": {"a": {"match": "*"}}}, "allocate.a", "exactly one of take and share"),
            ({"allocate": {"a": {"match": "*", "take": "all", "share": 1}}}, "allocate.a", "exactly one"),
            ({"allocate": {"a": {"match": "*", "share": -1}}, "size": "scarcest"}, "allocate.a", "0 or more"),
            ({"allocate": {"a": {"match": "*", "share": 0}}, "size": "scarcest"}, "", "all 0"),
            ({"allocate": {"a": {"match": "*", "share": 1}}}, "", "size is null"),
            ({"allocate": {"a": {"match": "*", "take": {"rows": 1, "tokens": 2}}}}, "allocate.a.take", "exactly one"),
            ({"allocate": {"a": {"match": "*", "take": "all"}}, "size": {"tokens": "5X"}}, "size", "not a count"),
            ({"allocate": {"a": {"match": "*", "take": "all"}}, "max_repeat": 0}, "", "at least 1"),
            ({"allocate": {"a": {"match": "*", "take": "all"}}, "holdout": {"fraction": 1}}, "holdout", "below 1"),
            ({"allocate": {"a": {"match": "*", "take": "all"}}, "infeasible": "clp"}, "infeasible", "not one of"),
            ({"allocate": {"a": {"match": "*", "take": "all", "temp": 2}}}, "allocate.a.temp", "unknown key"),
        ],
    )
    def test_errors_name_the_key(self, section: dict[str, Any], key: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words) as caught:
            build(Blend, section, file="conf/blend/x.yaml", key="")
        assert caught.value.key == key

    def test_counts(self) -> None:
        assert [count(value) for value in (7, "7", "300k", "2.5M", "1B")] == [7, 7, 300_000, 2_500_000, 10**9]
        assert Amount(tokens="50M").number == 50_000_000 and Amount(rows=3).unit == "rows"


class TestMembers:
    datasets: ClassVar[dict[str, dict[str, Any]]] = {
        "hermes_fc": {"tags": ["tools", "native"]},
        "ultrachat": {"tags": ["general"]},
        "off": {"enabled": False, "tags": ["general"]},
        "gsm8k_test": {"role": "evaluation"},
        "code": {"tags": None},
    }

    def test_the_first_rule_takes_a_dataset(self) -> None:
        blend = make({"tools": {"match": "tag:tool*", "take": "all"}, "rest": {"match": "*", "take": "all"}})
        assert members(blend, self.datasets).rules == {"tools": ["hermes_fc"], "rest": ["code", "ultrachat"]}

    def test_priority_follows_the_patterns_then_names(self) -> None:
        near = {"threshold": 0.9, "priority": ["tag:native", "u*"]}
        blend = make({"all": {"match": "*", "take": "all"}}, near_duplicates=near)
        assert members(blend, self.datasets).priority == ["hermes_fc", "ultrachat", "code"]

    def test_the_order_of_datasets_changes_nothing(self) -> None:
        blend = make({"all": {"match": "*", "take": "all"}})
        assert members(blend, dict(reversed(self.datasets.items()))) == members(blend, self.datasets)

    @pytest.mark.parametrize(
        ("rules", "words"),
        [
            ({"a": {"match": "hermes", "take": "all"}}, "did you mean 'hermes_fc'"),
            ({"all": {"match": "*", "take": "all"}, "a": {"match": "code", "take": "all"}}, r"code \(all\)"),
            ({"a": {"match": "off", "take": "all"}}, "matches no dataset"),
            ({"a": {"match": "gsm8k_test", "take": "all"}}, "matches no dataset"),
        ],
    )
    def test_a_rule_without_datasets_is_an_error(self, rules: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            members(make(rules), self.datasets)

    @pytest.mark.parametrize(("name", "words"), [("gsm8k", "did you mean 'gsm8k_test'"), ("code", "is trained on")])
    def test_decontamination_wants_evaluation_datasets(self, name: str, words: str) -> None:
        blend = make({"all": {"match": "*", "take": "all"}}, decontaminate={"against": [name]})
        with pytest.raises(ConfigError, match=words):
            members(blend, self.datasets)

    def test_a_rule_is_a_rule(self) -> None:
        assert Rule(match="a", take="all").patterns == ["a"]
