"""The path language beyond the compliance suite: shorthand, errors, patterns, places, walking."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest

from draftmill import paths
from draftmill.paths import iregexp
from draftmill.paths.closures import equal

ROW = {
    "trajectory": [
        {"role": "system", "text": None, "system_prompt": "Be brief."},
        {"role": "user", "text": "ISSUE"},
        {"role": "ai", "text": "ls", "mask": True},
        {"role": "user", "text": "a.txt", "mask": False},
    ],
    "meta": {"stars": 7, "lang": "python", "relevant APIs": [1, 2]},
}

SHORTHAND = [
    ("trajectory[role=user].text", "$['trajectory'][?@['role'] == 'user']['text']", ["ISSUE", "a.txt"]),
    ("trajectory[role==ai].text", "$['trajectory'][?@['role'] == 'ai']['text']", ["ls"]),
    ("trajectory[ role = ai ].text", "$['trajectory'][?@['role'] == 'ai']['text']", ["ls"]),
    (
        "trajectory[role!=user|system].text",
        "$['trajectory'][?@['role'] != 'user' && @['role'] != 'system']['text']",
        ["ls"],
    ),
    (
        "trajectory[role=user|ai, mask=true].text",
        "$['trajectory'][?(@['role'] == 'user' || @['role'] == 'ai') && @['mask'] == true]['text']",
        ["ls"],
    ),
    ("trajectory[text=null].system_prompt", "$['trajectory'][?@['text'] == null]['system_prompt']", ["Be brief."]),
    ("trajectory[-1].text", "$['trajectory'][-1]['text']", ["a.txt"]),
    ("trajectory[1:3].role", "$['trajectory'][1:3]['role']", ["user", "ai"]),
    ("trajectory[?@.mask].role", "$['trajectory'][?@['mask']]['role']", ["ai", "user"]),
    ("meta.*", "$['meta'][*]", [7, "python", [1, 2]]),
    ("meta['relevant APIs'][0]", "$['meta']['relevant APIs'][0]", [1]),
    ("trajectory..text", "$['trajectory']..['text']", [None, "ISSUE", "ls", "a.txt"]),
    (
        "trajectory..['role', 'mask']",
        "$['trajectory']..['role', 'mask']",
        ["system", "user", "ai", True, "user", False],
    ),
    ("['meta'].lang", "$['meta']['lang']", ["python"]),
    ("$.meta.stars", "$['meta']['stars']", [7]),
    ("$", "$", [ROW]),
]


@pytest.mark.parametrize(("text", "canonical", "matches"), SHORTHAND, ids=[case[0] for case in SHORTHAND])
def test_shorthand(text: str, canonical: str, matches: list[Any]) -> None:
    path = paths.compile(text)
    assert path.canonical == canonical
    assert path(ROW) == matches
    assert paths.compile(canonical)(ROW) == matches
    assert paths.compile(canonical) == path


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ("gpt-4.1", "'gpt-4.1'"),
        ("1", "1"),
        ("1.0", "1.0"),
        ("-2e3", "-2e3"),
        ("1.2.3", "'1.2.3'"),
        ("007", "'007'"),
        ("None", "'None'"),
        ("'true'", "'true'"),
        ('"it\'s"', "'it\\'s'"),
        ("train.raw", "'train.raw'"),
        ("a/b:c", "'a/b:c'"),
        ("größe", "'größe'"),
    ],
)
def test_shorthand_values(value: str, canonical: str) -> None:
    assert paths.compile(f"a[b={value}]").canonical == f"$['a'][?@['b'] == {canonical}]"


def test_nested_keys_in_a_shorthand_filter() -> None:
    path = paths.compile("calls[function.name=get].id")
    assert path.canonical == "$['calls'][?@['function']['name'] == 'get']['id']"
    assert path({"calls": [{"function": {"name": "get"}, "id": 1}, {"function": None}, {}, 3]}) == [1]


ERRORS = [
    ("", 0, "empty"),
    (".a", 0, "begins with a name"),
    ("a-b", 1, "['the-name']"),
    ("a.0", 2, "[0]"),
    ("a.-1", 2, "[-1]"),
    ("a.'b'", 2, "['name']"),
    ("a b", 1, "not expected"),
    ("a.", 2, "must follow '.'"),
    ("a[", 2, "is missing"),
    ("a[01]", 2, "leading zeros"),
    ("a[-0]", 2, "leading zeros"),
    ("a[9007199254740992]", 2, "2**53"),
    ("a[1", 3, "']' is missing"),
    ("a[role]", 6, "'=' or '!='"),
    ("a[role=]", 7, "value is missing"),
    ("a[role=two words]", 11, "',' or ']'"),
    ("a[@.b == 1]", 2, "begins with '?'"),
    ("a=1", 1, "[key=value]"),
    ("$[role=user]", 2, "must be quoted"),
    ("a[?@.b = 1]", 7, "write =="),
    ("a[?@.b | @.c]", 7, "write ||"),
    ("a[?@.b & @.c]", 7, "write &&"),
    ("a[?b == 1]", 3, "@.b"),
    ("a[?1]", 3, "constant alone"),
    ("a[?@..b == 1]", 3, "several values"),
    ("a[?length(@.b)]", 3, "compare it"),
    ("a[?match(@.b, 'x') == true]", 3, "yes or no"),
    ("a[?lenght(@.b) > 1]", 3, "did you mean 'length'"),
    ("a[?length(@.b, 1) > 1]", 3, "1 argument, not 2"),
    ("a[?count(1) > 1]", 3, "must be a path"),
    ("a[?length(@.*) > 1]", 3, "one value at most"),
    ("a[?search(@.b, '\\\\d+')]", 3, "write [0-9]"),
    ("a[?search(@.b, '(a')]", 3, "')' is missing"),
    ("a['b", 2, "does not end"),
    ("a['b\\q']", 4, "escape"),
    ("a['\\ud800']", 3, "surrogate"),
    ("a['b\nc']", 4, "escape"),
    ("a[?" + "(" * 60 + "@.b" + ")" * 60 + "]", 53, "levels"),
]


@pytest.mark.parametrize(("text", "position", "words"), ERRORS, ids=[case[0][:30] for case in ERRORS])
def test_errors_point_at_the_character(text: str, position: int, words: str) -> None:
    with pytest.raises(paths.PathError) as caught:
        paths.compile(text)
    assert caught.value.position == position
    assert words in caught.value.message
    assert str(caught.value).splitlines()[-1].index("^") == position + 4


def test_a_long_path_needs_no_stack() -> None:
    path = paths.compile("a" + ".a" * 20_000 + "[0]" * 20_000)
    assert path({"a": 1}) == []


def test_a_deep_document_needs_no_stack() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert len(paths.compile("$..[0]")(deep)) == 100_000
    assert paths.compile("$[?@ == $[0]]")(deep) == [deep[0]]
    while isinstance(deep, list):  # taken apart by hand: freeing it nested would recurse in C
        deep = deep.pop()


def test_filter_bodies() -> None:
    row = {"status": "done", "turns": [1, 2], "limit": 2}
    assert paths.compile_filter("@.status == 'done' && length(@.turns) > 1")(row)
    assert not paths.compile_filter(" @.status != 'done' ")(row)
    assert paths.compile_filter("count(@.turns[?@ <= $.limit]) == 2")(row)
    assert paths.compile_filter("@.limit < $.limit")({"limit": 1}, row)
    assert paths.compile_filter("!(@.a || @.b)").canonical == "!(@['a'] || @['b'])"
    with pytest.raises(paths.PathError) as caught:
        paths.compile_filter("@.a == 1 )")
    assert caught.value.position == 9


def test_equality_is_by_type_and_value() -> None:
    assert equal(1, 1.0) and equal([1, {"a": 2.0}], [1.0, {"a": 2}]) and equal(None, None)
    for left, right in [
        (True, 1),
        (0, False),
        ([True], [1]),
        ({"a": 0}, {"a": False}),
        ("1", 1),
        ([], {}),
        ([1], [1, 2]),
    ]:
        assert not equal(left, right)
    path = paths.compile("$[?@.a == 1]")
    assert path([{"a": True}, {"a": 1}, {"a": 1.0}, {"a": "1"}]) == [{"a": 1}, {"a": 1.0}]
    assert paths.compile("$[?@.a == true].a")([{"a": True}, {"a": 1}]) == [True]
    assert paths.compile("$[?@.a == 18446744073709551617].a")([{"a": 2**64 + 1}, {"a": 2.0**64}]) == [2**64 + 1]


def test_existence_is_not_truth() -> None:
    assert paths.compile("$[?@.text]")([{"text": None}, {"text": ""}, {}]) == [{"text": None}, {"text": ""}]
    assert paths.compile("$[?@.text != null]")([{"text": None}, {}]) == [{}]


def test_odd_values_under_a_text_filter() -> None:
    document = [{"r": ["user"]}, {"r": {"a": 1}}, {"r": None}, {}, "user", 3, None, {"r": "user"}]
    assert paths.compile("$[?@.r == 'user']")(document) == [{"r": "user"}]
    assert paths.compile("$[?@.r == 'user' || @.r == 'human']")(document) == [{"r": "user"}]
    assert paths.compile("$[?@.r == 'user']")({"x": {"r": "user"}, "y": 1}) == [{"r": "user"}]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a.b", {"a"}),
        ("['a', 'b'].c", {"a", "b"}),
        ("a[?@.x == $.limit]", {"a", "limit"}),
        ("a[?@.x[?@.y == $.z] || count($.w[*]) > 1]", {"a", "z", "w"}),
        ("a[?count($..x) > 1]", None),
        ("$", None),
        ("$.*", None),
        ("$..a", None),
        ("[0]", None),
        ("a..b", {"a"}),
    ],
)
def test_columns_that_a_path_reads(text: str, columns: set[str] | None) -> None:
    assert paths.compile(text).columns == columns


def test_columns_that_a_filter_reads() -> None:
    assert paths.compile_filter("@.a.b == 1 && length($.c) > 1 || !search(@.d, 'x')").columns == {"a", "c", "d"}
    assert paths.compile_filter("@.* ").columns is None


def test_walking_step_by_step() -> None:
    path = paths.compile("trajectory[role=assistant|model].text")
    assert [step.text for step in path.steps] == [
        "['trajectory']",
        "[?@['role'] == 'assistant' || @['role'] == 'model']",
        "['text']",
    ]
    assert [step.name for step in path.steps] == ["trajectory", None, "text"]
    assert path.steps[1].wanted == (("role",), ("assistant", "model"))
    turns = path.steps[0]([ROW], ROW)
    assert turns == [ROW["trajectory"]]
    assert path.steps[1](turns, ROW) == []
    assert paths.compile("a[?@.x == $.y]").steps[1]([[{"x": 1}]], {"y": 1}) == [{"x": 1}]
    assert paths.compile("content").name == "content"
    assert paths.compile("a.b").name is None


@pytest.mark.parametrize(
    ("text", "count", "after"),
    [
        ("a", 1, {"a": "N", "b": {"c": 3}}),
        ("a[*].x", 2, {"a": [{"x": "N"}, {"x": "N"}], "b": {"c": 3}}),
        ("a[-1].x", 1, {"a": [{"x": 1}, {"x": "N"}], "b": {"c": 3}}),
        ("a[0:1]", 1, {"a": ["N", {"x": 2}], "b": {"c": 3}}),
        ("a[x=2]", 1, {"a": [{"x": 1}, "N"], "b": {"c": 3}}),
        ("$..x", 2, {"a": [{"x": "N"}, {"x": "N"}], "b": {"c": 3}}),
        ("b.*", 1, {"a": [{"x": 1}, {"x": 2}], "b": {"c": "N"}}),
        ("b[0]", 0, {"a": [{"x": 1}, {"x": 2}], "b": {"c": 3}}),
        ("a.x", 0, {"a": [{"x": 1}, {"x": 2}], "b": {"c": 3}}),
        ("$", 0, {"a": [{"x": 1}, {"x": 2}], "b": {"c": 3}}),
    ],
)
def test_replacing_in_place(text: str, count: int, after: dict[str, Any]) -> None:
    document = {"a": [{"x": 1}, {"x": 2}], "b": {"c": 3}}
    assert paths.compile(text).replace(document, lambda _: "N") == count
    assert document == after


def test_matching_leaves_the_document_alone() -> None:
    before = copy.deepcopy(ROW)
    paths.compile("trajectory[role=user].text")(ROW)
    paths.compile("$..*")(ROW)
    assert before == ROW


def test_paths_travel_between_processes() -> None:
    path, condition = paths.compile("a[b=1]"), paths.compile_filter("@.a == 1")
    assert pickle.loads(pickle.dumps(path)) == path
    assert pickle.loads(pickle.dumps(condition))({"a": 1})
    assert len({path, paths.compile("$['a'][?@['b'] == 1]")}) == 1


# -- patterns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("[a-c]+x?", "abcx", "abd"),
        ("a{2,3}", "aaa", "aaaa"),
        ("a{2}", "aa", "a"),
        ("a{2,}", "aaaaa", "a"),
        ("(ab|cd)*", "abcdab", "abc"),
        (r"\p{Lu}\P{Lu}", "Äb", "ab"),
        (r"[\p{Nd}_]+", "1_2", "a"),
        (r"[^\n]+", "ab", "a\nb"),
        ("[-a]+", "a-a", "b"),
        ("[a-]+", "a-a", "b"),
        ("[^-]", "a", "-"),
        (r"[\[\]\\^]+", "[]\\^", "a"),
        (r"\(\)\{\}\*\+\?\.\|\-\^", "(){}*+?.|-^", ""),
        ("a#b c", "a#b c", "ab"),
        ("a&&b~~c", "a&&b~~c", "abc"),
        ("[a&&b]", "&", "c"),
        ("", "", "a"),
        ("a|", "", "b"),
        ("^a$", "a", "a\n"),
    ],
)
def test_iregexp(pattern: str, yes: str, no: str) -> None:
    assert iregexp.matches(yes, pattern, whole=True)
    assert not iregexp.matches(no, pattern, whole=True)


NO_PATTERNS = [
    r"\d",
    r"\w",
    r"\1",
    "(?i)a",
    "(?=a)",
    "a**",
    "*a",
    "a{",
    "a}",
    "[",
    "[]",
    "[^]",
    "]",
    "(",
    ")",
    r"\p{Xx}",
]
NO_PATTERNS += [
    "a??",
    "\\",
    "[a-b-c]",
    "x" * 5000,
    "a{30000}",
    "(((a{1000}){1000}){1000}){1000}",
    "(" * 60 + "a" + ")" * 60,
]


@pytest.mark.parametrize("pattern", NO_PATTERNS, ids=[pattern[:20] for pattern in NO_PATTERNS])
def test_what_is_no_iregexp(pattern: str) -> None:
    with pytest.raises(iregexp.PatternError):
        iregexp.translate(pattern)
    assert not iregexp.matches("a", pattern, whole=False)


def test_a_pattern_from_the_data_that_is_wrong_matches_nothing() -> None:
    assert paths.compile("$[?search(@.a, @.p)]")([{"a": "a1", "p": "\\d"}, {"a": "a1", "p": "[0-9]"}, {"a": "a1"}]) == [
        {"a": "a1", "p": "[0-9]"}
    ]


def test_no_pattern_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iregexp, "TIME_LIMIT_S", 0.2)
    started = time.monotonic()
    with pytest.raises(paths.PatternTimeout) as caught:
        paths.compile("$[?match(@, '(a|aa)+')]")(["a" * 5000 + "c"])
    assert time.monotonic() - started < 5
    assert "(a|aa)+" in str(caught.value) and "5001 characters" in str(caught.value)


@pytest.mark.parametrize("pattern", ["(a{100}){100}", "a{0,19000}b", "(" * 49 + "a" + ")*" * 49, "[a-z]{15000}"])
def test_no_pattern_is_too_much_to_compile(pattern: str) -> None:
    started = time.monotonic()
    assert not iregexp.matches("c", pattern, whole=True)
    assert time.monotonic() - started < 5
