"""Mistakes in a declaration: the file, the key, what was found, and the nearest right key or value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftmill.errors import ConfigError
from draftmill.extract import validate
from draftmill.extract.validation import SCHEMA_FILE

ROOT = Path(__file__).parents[1]
GOOD: dict[str, Any] = {"source": {"files": "x.jsonl"}, "schema": {"turns": {"each": "t"}}}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with a value at a dotted path."""
    raw = json.loads(json.dumps(GOOD))
    *outer, last = path.split(".")
    inside = raw
    for key in outer:
        inside = inside.setdefault(key, {})
    inside[last] = value
    return dict(raw)


def complaint(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate("toy", raw)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "key", "says"),
    [
        ("sorce", {}, "sorce", "did you mean 'source'?"),
        ("schema.turn", {}, "schema.turn", "did you mean 'turns'?"),
        ("schema.turns.txt", "x", "schema.turns.txt", "did you mean 'text'?"),
        ("schema.turns", [{"each": "a"}, {"each": "b", "rol": "c"}], "schema.turns[1].rol", "did you mean 'role'?"),
        ("schema.turns.parts", "rejct", "schema.turns.parts", "did you mean 'reject'?"),
        ("schema.turns.take", "frist", "schema.turns.take", "did you mean 'first'?"),
        ("schema.turns.split", {"user": "U:", "att": "any"}, "schema.turns.split.att", "did you mean 'at'?"),
        ("schema.turns.role", {"as": "usr"}, "schema.turns.role.as", "did you mean 'user'?"),
        ("schema.turns.role", {"@.a": "asistant"}, "schema.turns.role.@.a", "did you mean 'assistant'?"),
        ("schema.turns.each", 5, "schema.turns.each", "path"),
        ("schema.keep", "last_user", "schema.keep", "did you mean 'to_last_user'?"),
        ("schema.keep", {"users": 0}, "schema.keep.users", "out of range"),
        ("schema.keep", {"user": 2}, "schema.keep.user", "did you mean 'users'?"),
        ("schema.roles", {"critic": "ignore"}, "schema.roles.critic", "drop"),
        ("schema.expect", {"yeild": 1}, "schema.expect.yeild", "did you mean 'yield'?"),
        ("schema.expect", {"yield": 99}, "schema.expect.yield", "out of range"),
        ("schema.where", {"a": ["x"]}, "schema.where.a", "must be"),
        ("schema.orphan_tool", "drop", "schema.orphan_tool", "keep"),
        ("schema.tools", {"path": "tools", "twice": "stip"}, "schema.tools.twice", "did you mean 'strip'?"),
        ("schema.join", {"rows": "@.a", "as": "b"}, "schema.join", "`on` is required"),
        ("schema.turns.split", {"at": "any"}, "schema.turns.split", "user: 'USER:'"),
        ("schema.turns.tool_calls", {"each": "x"}, "schema.turns.tool_calls", "`name` is required"),
        ("schema.tools", {"each": "x"}, "schema.tools", "`name` is required"),
        ("schema.tools", {"from": "user"}, "schema.tools.from", 'must be "system"'),
        ("schema.tools", {"from": "system", "between": ["<a>"]}, "schema.tools.between", "2 entries, not 1"),
        ("schema.keep", {"users": 1, "steps": 2}, "schema.keep.steps", "exclude each other"),
        ("schema.keep", "steps", "schema.keep", "{steps: n}"),
        ("schema.empty", 5, "schema.empty", "no form that is understood"),
        ("quota", "al", "quota", "did you mean 'all'?"),
        ("quota", 0, "quota", "out of range"),
        ("quota", {"rows": 5, "fraction": 0.1}, "quota.", "exclude each other"),
        ("quota", {"tokens": "5 M"}, "quota.tokens", "with k, M or B after it"),
        ("quota", "10", "quota", "a number of rows"),
        ("quota", {"fraction": 2}, "quota.fraction", "out of range"),
        ("answer", "regenrate", "answer", "did you mean 'regenerate'?"),
        ("mask", "assistent", "mask", "did you mean 'assistant'?"),
        ("role", "eval", "role", "evaluation"),
        ("tags", "code", "tags", "must be a list"),
        ("enabled", "yes", "enabled", "must be true or false"),
        ("source.file", "x", "source.file", "did you mean 'files'?"),
    ],
)
def test_a_mistake_in_the_form(path: str, value: Any, key: str, says: str) -> None:
    message = complaint(changed(path, value))
    assert message.startswith(f"conf/dataset/toy.yaml: {key}"), message
    assert says in message


@pytest.mark.parametrize(
    ("path", "value", "key", "position"),
    [
        ("schema.turns.each", "a[role=user", "schema.turns.each", "at character"),
        ("schema.turns.text", ["a", "b..", "c"], "schema.turns.text[1]", "at character"),
        ("schema.turns.role", {"@.a ==": "user"}, "schema.turns.role", "at character"),
        ("schema.where", "@.a = 1", "schema.where", "at character"),
        ("schema.join", {"rows": "@.a &&", "on": "id", "as": "x"}, "schema.join.rows", "at character"),
        ("schema.meta", {"a": "a[", "b": "b"}, "schema.meta.a", "at character"),
        ("mask", {"flag": "a["}, "mask.flag", "at character"),
        ("source.rows", "a[", "source: `rows`", "at character"),
    ],
)
def test_a_mistake_in_a_path_has_its_position(path: str, value: Any, key: str, position: str) -> None:
    message = complaint(changed(path, value))
    assert message.startswith(f"conf/dataset/toy.yaml: {key}"), message
    assert position in message


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"pairs": {"user": "a"}, "role": "r"}, "role"),
        ({"pairs": {"user": "a"}, "text": "t"}, "text"),
        ({"pairs": {"user": "a"}, "split": {"user": "U:"}}, "split"),
        ({"pairs": {"user": "a"}, "reasoning": "r"}, "reasoning"),
        ({"split": {"user": "U:"}, "tool_calls": "c"}, "tool_calls"),
        ({"split": {"user": "U:"}, "role": {"as": "user"}}, "role"),
    ],
)
def test_keys_that_mean_nothing_together(block: dict[str, Any], key: str) -> None:
    message = complaint(changed("schema.turns", [{"each": "t"}, block]))
    assert message.startswith(f"conf/dataset/toy.yaml: schema.turns[1].{key}: `{key}` means nothing beside `"), message
    assert f"leave `{key}` out" in message


def test_keys_that_need_each_other() -> None:
    assert "exactly one of `turns` and `prompt`" in complaint(changed("schema.prompt", "q"))
    assert "exactly one of `turns` and `prompt`" in complaint({"source": GOOD["source"], "schema": {"id": "x"}})
    assert "`schema` is required" in complaint({"source": GOOD["source"]})
    message = complaint({**GOOD, "quota": {"rows": 5, "by": "category"}})
    assert message.startswith("conf/dataset/toy.yaml: quota.by: ")
    assert "meta: {category: category}" in message


def test_what_composing_adds_is_accepted() -> None:
    derived = {"input": "x", "answer_resolved": "dataset", "keep_resolved": {"users": 2}, "flag_resolved": None}
    validate("toy", {**GOOD, **derived, "enabled": True, "quota": "all", "tags": ["a"], "mask": {"flag": "w"}})


def test_the_declarations_of_this_project_are_valid() -> None:
    for path in sorted((ROOT / "conf/dataset").glob("*.yaml")):
        validate(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_json_schema_is_one_and_explains_its_keys() -> None:
    from jsonschema import Draft202012Validator

    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    assert set(schema["properties"]) >= {"source", "schema", "quota", "answer", "mask", "tags", "role", "enabled"}
    assert [key for key, node in keys(schema) if not node.get("description")] == []


def keys(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key that a file may have, at any depth, with its part of the schema."""
    for name, inner in node.get("properties", {}).items() if isinstance(node, dict) else ():
        referred = inner.get("$ref", "").rpartition("/")[2]
        shared = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))["$defs"].get(referred, {})
        yield name, {**shared, **inner}
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from keys(inner)


def test_a_misspelled_section_is_named_before_the_one_it_leaves_empty() -> None:
    told = complaint({"source": {}, "schema": {"prompt": "q"}, "sorce": {"files": "x.jsonl"}})
    assert "unknown key 'sorce'" in told
    assert "did you mean 'source'?" in told


def test_a_float_is_no_number_of_rows() -> None:
    assert "quota" in complaint({**GOOD, "quota": 1000.0})
