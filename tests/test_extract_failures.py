"""Failing loudly: every class of mistake names the file, the key, what was found, and what to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from extracting import FILE, chat, extract, failure

T = "turns: {each: t}"


def rows(count: int = 30, **more: Any) -> list[dict[str, Any]]:
    return [{"t": chat(("system", "S"), ("human", f"q{i}"), ("ai", "a")), "n": i % 3, **more} for i in range(count)]


def expect(message: str, key: str, *parts: str) -> None:
    """The message names the file and the key, and says `parts`."""
    assert message.startswith(f"{FILE}: {key}: "), message
    for part in parts:
        assert part in message, (part, message)


@pytest.mark.parametrize(
    ("schema", "key", "parts"),
    [
        (
            "{turns: {each: tt}}",
            "schema.turns.each",
            ["no key 'tt' in 30 places", "keys there: t 30, n 30", "did you mean 't'?"],
        ),
        (
            "{turns: {each: t, role: roles}}",
            "schema.turns.role",
            ["no key 'roles' in 90 places", "did you mean 'role'?"],
        ),
        (
            "{turns: {each: t, text: [value, words]}}",
            "schema.turns.text",
            ["value or words matched nothing", "keys there: role 90, content 90"],
        ),
        ("{turns: {each: t, text: {join: [content, inpt]}}}", "schema.turns.text.join[1]", ["no key 'inpt'"]),
        (
            "{prompt: 't[role=assistant].content'}",
            "schema.prompt",
            ["$['t'] has 90 elements, none with role = 'assistant'", "system 30, human 30, ai 30", "[role=ai]"],
        ),
        ("{prompt: 't[role=humn].content'}", "schema.prompt", ["none with role = 'humn'", "did you mean 'human'?"]),
        ("{prompt: 't[rle=human].content'}", "schema.prompt", ["none with a key 'rle'", "did you mean 'role'?"]),
        ("{prompt: t.content}", "schema.prompt", ["$['t'] is a list", "t[*].content"]),
        ("{prompt: 't[xyz=1].content'}", "schema.prompt", ["none with a key 'xyz'", "compare a key that is there"]),
        ("{prompt: n.text}", "schema.prompt", ["$['n'] is a number", "the path ends one step earlier"]),
        ("{turns: {each: n}}", "schema.turns.role", ["@ is a number", "`each` leads to no turns"]),
        (
            "{prompt: 't[7].content'}",
            "schema.prompt",
            ["a list of at most 3 elements; [7]", "draftmill path 't[7].content'"],
        ),
        ("{prompt: '$..zz'}", "schema.prompt", ["$ is an object; ..['zz']", "draftmill path '$..zz'"]),
        ("{turns: {each: t}, tools: tools}", "schema.tools", ["no key 'tools'"]),
        ("{turns: {each: t}, id: uid}", "schema.id", ["no key 'uid'"]),
        ("{turns: {each: t}, group: [n, issue]}", "schema.group[1]", ["no key 'issue'"]),
        ("{turns: {each: t}, meta: {lang: lang}}", "schema.meta.lang", ["no key 'lang'"]),
        ("{turns: {each: t, tool_calls: calls}}", "schema.turns.tool_calls", ["no key 'calls'"]),
        ("{turns: {each: t, reasoning: think}}", "schema.turns.reasoning", ["no key 'think'"]),
        ("{turns: {each: t}, decode: [body]}", "schema.decode[0]", ["no key 'body'"]),
        ("{turns: {each: t}, system: sys}", "schema.system", ["no key 'sys'"]),
    ],
)
def test_a_path_that_matches_nothing(tmp_path: Path, schema: str, key: str, parts: list[str]) -> None:
    expect(failure(tmp_path, schema, *rows()), key, "matched nothing in 30 rows", *parts)


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        ("{turns: {each: t}, tools: {each: apis, name: label, description: helps}}", "schema.tools.description"),
        (
            "{turns: {each: t, tool_calls: {each: acts, name: label, arguments: helps}}}",
            "schema.turns.tool_calls.arguments",
        ),
    ],
)
@pytest.mark.parametrize("written", [list, json.dumps])
def test_a_part_of_a_foreign_shape_that_matches_nothing(tmp_path: Path, schema: str, key: str, written: Any) -> None:
    foreign = written([{"label": "f", "help": "d"}])
    made = [{"t": [*chat(("user", f"q{i}")), {"role": "ai", "acts": foreign}], "apis": foreign} for i in range(30)]
    found = failure(tmp_path, schema, *made)
    expect(found, key, "@ has no key 'helps' in 30 places", "keys there: label 30, help 30", "did you mean 'help'?")
    assert extract(tmp_path, schema.replace("helps", "help"), *made, checked=True).unseen == []


@pytest.mark.parametrize(
    ("system", "parts"),
    [
        (
            "<tools> see the manual </tools>",
            ["between '<tools>' and '</tools>'", "30 with '<tools>'", "see the manual"],
        ),
        ('<t>[{"name": "f"}]</t>', ["0 with '<tools>'", "between: [before, after]"]),
        (None, ["0 system turns in 30 rows", "say where the text is"]),
    ],
)
def test_no_specs_in_any_system_text(tmp_path: Path, system: str | None, parts: list[str]) -> None:
    made = [{"t": chat(("system", system), ("user", f"q{i}"))} for i in range(30)]
    expect(failure(tmp_path, "{turns: {each: t}, tools: {from: system}}", *made), "schema.tools", *parts)


def test_what_comes_before_a_join_does_not_see_it(tmp_path: Path) -> None:
    join = "join: {rows: '@.n == 2', on: k, as: x}"
    found = failure(tmp_path, f"{{{T}, {join}, where: '@.x.n == 2'}}", *rows(k=1))
    expect(found, "schema.where", "`where` comes before `join`", "join.rows")
    found = failure(tmp_path, f"{{{T}, {join}, decode: [t, 'x.body[*]']}}", *rows(k=1))
    expect(found, "schema.decode[1]", "`decode` comes before `join`", """own row:  "$['body'][*]\"""")


def test_rows_that_a_join_leaves_none_of(tmp_path: Path) -> None:
    schema = f"{{{T}, join: {{rows: '@.n == 7', on: n, as: x}}}}"
    expect(failure(tmp_path, schema, *rows()), "schema.expect.min_rows", "join 30", "check `join`")


def test_a_flag_that_matches_nothing(tmp_path: Path) -> None:
    expect(failure(tmp_path, T, *rows(), mask={"flag": "maks"}), "mask.flag", "no key 'maks'")


def test_a_path_over_null_values_only(tmp_path: Path) -> None:
    expect(failure(tmp_path, f"{{{T}, id: uid}}", *rows(uid=None)), "schema.id", "always null or empty")


def test_alternatives_count_as_one(tmp_path: Path) -> None:
    assert extract(tmp_path, "{turns: {each: [nil, t], text: [content, nil]}}", *rows(), checked=True).unseen == []


@pytest.mark.parametrize(
    ("schema", "key"),
    [("{turns: {each: body.t}}", "schema.turns.each"), ("{prompt: 'body.t[*].content'}", "schema.prompt")],
)
def test_a_text_that_holds_json(tmp_path: Path, schema: str, key: str) -> None:
    found = failure(tmp_path, schema, *rows(body=json.dumps({"t": []})))
    expect(found, key, "$['body'] is a text that holds JSON", "decode: [body]")


def test_turns_that_are_texts_that_hold_json(tmp_path: Path) -> None:
    found = failure(tmp_path, "{turns: {each: body}}", *rows(body=json.dumps(chat(("user", "q")))))
    expect(found, "schema.expect.yield", "turn_is_a_string 30", "decode: [body]")


def test_a_row_that_is_a_list(tmp_path: Path) -> None:
    expect(
        failure(tmp_path, "{turns: {each: t}}", chat(("user", "q"))),
        "schema.turns.each",
        "$ is a list",
        'each: "$"',
        "rows: $",
    )


@pytest.mark.parametrize(
    ("name", "rows_", "text", "instead"),
    [
        ("x.jsonl", None, "[{row}, {row}]\n", '"$[*][*]"'),
        ("x.json", "data", '{"data": [{row}, {row}]}', '"data[*]"'),
        ("x.json", None, '{"data": [{row}, {row}]}', '"data[*]"'),
        ("x.jsonl", None, '{"data": [{row}, {row}]}\n', '"$[*].data[*]"'),
        ("x.json", None, '{"a b": {"x": {row}, "y": {row}}}', "\"$['a b'][*]\""),
        ("x.json", None, '{"a": {row}, "b": {row}}', '"*"'),
        ("x.jsonl", None, '{"a": {row}, "b": {row}}\n', '"$[*][*]"'),
    ],
)
def test_rows_that_stand_deeper(tmp_path: Path, name: str, rows_: str | None, text: str, instead: str) -> None:
    (tmp_path / name).write_text(text.replace("{row}", json.dumps({"t": chat(("user", "q"))})))
    source = {"files": str(tmp_path / name)} | ({"rows": rows_} if rows_ else {})
    found = failure(tmp_path, T, source=source)
    expect(found, "schema.turns.each", f"write  rows: {instead}  in source")
    source["rows"] = json.loads(instead)
    assert extract(tmp_path, T, source=source, checked=True).duplicates == 1, "the advice is right"


def test_rows_that_match_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"data": rows(3)}))
    found = failure(tmp_path, T, source={"files": str(tmp_path / "x.json"), "rows": "dta[*]"})
    expect(found, "source.rows", "dta[*] matched nothing", "keys there: data 1", "did you mean 'data'?")
    (tmp_path / "x.json").write_text("[]")
    found = failure(tmp_path, T, source={"files": str(tmp_path / "x.json")})
    expect(found, "schema.expect.min_rows", "no row in ", "x.json")


def test_texts_that_do_not_decode(tmp_path: Path) -> None:
    found = failure(tmp_path, "{turns: {each: b.t}, decode: [b]}", *rows(5, b="{cut"))
    expect(found, "schema.expect.yield", "cannot_decode 5", "neither JSON nor a Python literal")


def test_a_prompt_that_is_a_list(tmp_path: Path) -> None:
    found = failure(tmp_path, "{prompt: p}", *({"p": ["a", str(i)]} for i in range(5)))
    expect(found, "schema.expect.yield", "prompt_is_a_list 5", "[*]")


def test_an_unknown_role_lists_every_label(tmp_path: Path) -> None:
    some = [*rows(), {"t": chat(("user", "q"), ("critic", "c"), ("judge", "j"), ("critic", "d"))}]
    found = failure(tmp_path, T, *some)
    expect(
        found,
        "schema.roles",
        "'critic', 'judge'",
        "system 30, human 30, ai 30, critic 2, user 1, judge 1",
        "roles: {critic: …, judge: …}",
    )
    expect(failure(tmp_path, f"{{{T}, roles: {{judge: drop}}}}", *some), "schema.roles", "'critic'")
    assert len(extract(tmp_path, f"{{{T}, roles: {{judge: drop, critic: drop}}}}", *some, checked=True).messages) == 31


@pytest.mark.parametrize(
    ("role", "parts"),
    [
        ({"name": "user", "id": "u7"}, ["role gives an object", "it holds: {'name': 'user'", "write  role: role.name"]),
        (["user"], ["role gives a list", "write  role: role[0]"]),
        ([["user"]], ["role gives a list", "point it at the text"]),
    ],
)
def test_a_label_that_is_no_text(tmp_path: Path, role: object, parts: list[str]) -> None:
    made = [{"t": [{"role": role, "content": f"q{i}"}]} for i in range(5)]
    found = failure(tmp_path, T, *made)
    expect(found, "schema.turns.role", *parts)
    if "write  role: " in found:
        path = found.partition("write  role: ")[2].split()[0]
        assert len(extract(tmp_path, f"turns: {{each: t, role: '{path}'}}", *made, checked=True).messages) == 5


@pytest.mark.parametrize("label", ["no", "a: b", "1", "[x]", "user, too", "true", "#x", "'", "wise one", "用户"])
def test_the_roles_to_add_are_yaml(tmp_path: Path, label: str) -> None:
    made = [{"t": chat(("user", f"q{i}"), (label, "a"))} for i in range(5)]
    found = failure(tmp_path, T, *made)
    written = found.partition("add  roles: ")[2].partition("}")[0].replace("…", "drop") + "}"
    assert label in written
    assert extract(tmp_path, f"{{{T}, roles: {written}}}", *made, checked=True).conversations[0][0] == ("user", "q0")


def test_the_most_telling_path_is_named_first(tmp_path: Path) -> None:
    schema = "{turns: {each: tt, role: rle}, id: uid, group: issue, tools: tols, meta: {a: b}}"
    expect(failure(tmp_path, schema, *rows()), "schema.turns.each")
    expect(failure(tmp_path, schema.replace("tt", "t"), *rows()), "schema.turns.role")


def test_no_rule_of_a_role_holds(tmp_path: Path) -> None:
    schema = "turns: {each: t, role: {\"@.role == 'human'\": user}}"
    expect(failure(tmp_path, schema, *rows()), "schema.turns.role", "else: drop")


@pytest.mark.parametrize(
    ("where", "key", "parts"),
    [
        ("{n: '1'}", "schema.where.n", ["never text", "0 10, 1 10, 2 10", "without quotes"]),
        ("{n: no}", "schema.where.n", ["never true or false", "0 10, 1 10", "compare with one of these values"]),
        ("{s: 1}", "schema.where.s", ["never a number", "'no' 30", "quote the value"]),
        ("{s: no}", "schema.where.s", ["never true or false", "'no' 30", "a plain yes, no, on or off"]),
        ("'@.n == 5'", "schema.where", ["drops every one of 30 rows", "n: 0 10, 1 10, 2 10"]),
        ("{n: 5}", "schema.where", ["drops every one of 30 rows", "n: 0 10"]),
        ("{m: 5}", "schema.where.m", ["never a number", "none"]),
    ],
)
def test_where_that_cannot_hold(tmp_path: Path, where: str, key: str, parts: list[str]) -> None:
    expect(failure(tmp_path, f"{{{T}, where: {where}}}", *rows(s="no")), key, *parts)


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        ("{turns: {each: t}, where: \"match(@.p, '(a|aa)+c')\"}", "schema.where"),
        (
            "{turns: {each: t}, where: {\"t[?search(@.content, 'aa')].role\": human},"
            " id: \"t[?match(@.content, '(a|aa)+c')].role\"}",
            "schema.id",
        ),
        ("{turns: {each: t, role: {\"match(@.content, '(a|aa)+c')\": user, else: drop}}}", "schema.turns.role"),
        ("{turns: {each: t}, where: '@.n < 9', join: {rows: \"match(@.p, @.r)\", on: n, as: x}}", "schema.join.rows"),
    ],
)
def test_a_pattern_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str, key: str) -> None:
    monkeypatch.setattr("draftmill.paths.iregexp.TIME_LIMIT_S", 0.05)
    made = [{"t": chat(("human", "a" * 5000)), "n": 1, "p": "a" * 5000, "r": "(a|aa)+c"}]
    expect(failure(tmp_path, schema, *made), key, "'(a|aa)+c' took more than", "write a simpler pattern")


def test_yield_below_what_is_expected(tmp_path: Path) -> None:
    some = [*rows(17), *({"t": chat(("ai", "a"))} for _ in range(3))]
    expect(
        failure(tmp_path, T, *some),
        "schema.expect.yield",
        "yield 0.850 is below 0.99",
        "3 of 20 rows rejected",
        "no_user_turn 3",
        "{yield: 0.85}",
    )
    assert extract(tmp_path, f"{{{T}, expect: {{yield: 0.85}}}}", *some, checked=True).rejects == {"no_user_turn": 3}


def test_filtered_rows_do_not_count_in_yield(tmp_path: Path) -> None:
    some = [*rows(10, w=1), *({"t": [], "w": 2} for _ in range(10))]
    assert len(extract(tmp_path, f"{{{T}, where: {{w: 1}}}}", *some, checked=True).messages) == 10


def test_too_few_rows(tmp_path: Path) -> None:
    found = failure(tmp_path, f"{{{T}, expect: {{min_rows: 50}}}}", *rows())
    expect(found, "schema.expect.min_rows", "30 rows kept, at least 50 expected")


def test_one_text_in_most_rows(tmp_path: Path) -> None:
    found = failure(tmp_path, "{prompt: 't[role=system].content'}", *rows())
    expect(
        found,
        "schema.prompt",
        "30 of 30 rows (100%) have the same user turns",
        "they all say: S",
        "system text",
        "dedup: [path, …]",
    )
    assert extract(tmp_path, "{prompt: 't[role=system].content', dedup: n}", *rows(), checked=True).duplicates == 27
    assert extract(tmp_path, "{prompt: 't[role=system].content'}", *rows(19), checked=True).duplicates == 18


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("x.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", ["LFS"]),
        ("x.jsonl", b"<!DOCTYPE html><html><body>Not found</body></html>", ["HTML"]),
        ("x.jsonl", b"", ["empty"]),
        ("x.parquet", b"PAR1 not really", []),
        (None, b"", ["no such file"]),
    ],
)
def test_files_that_are_no_data(tmp_path: Path, name: str | None, content: bytes, parts: list[str]) -> None:
    path = tmp_path / (name or "missing.jsonl")
    if name:
        path.write_bytes(content)
    found = failure(tmp_path, T, source={"files": str(path)})
    assert str(path) in found
    for part in parts:
        assert part in found
