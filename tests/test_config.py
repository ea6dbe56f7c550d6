"""The border: params.yaml in, dataclasses out; every wrong value names its file and key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from draftmill.config import build, params, section
from draftmill.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    rate: float = 0.5
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    kind: Literal["eagle3", "dflash"]
    count: int = 1
    inner: Inner = field(default_factory=Inner)
    limit: int | None = None
    either: str | Inner = ""
    table: dict[str, Inner] = field(default_factory=dict)
    free: Any = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")


def outer(**data: Any) -> Outer:
    return build(Outer, data, file="f.yaml", key="top")


def failure(**data: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        outer(**data)
    return caught.value


def test_values_of_every_form_arrive() -> None:
    made = outer(
        kind="dflash",
        count=3,
        inner={"rate": 1, "names": ["a", "b"]},
        either={"rate": 0.25},
        table={"x": {"names": ["c"]}},
        free={"any": [1]},
    )
    assert made.inner == Inner(rate=1.0, names=("a", "b"))
    assert isinstance(made.inner.rate, float)
    assert made.either == Inner(rate=0.25)
    assert made.table == {"x": Inner(names=("c",))}
    assert made.free == {"any": [1]}
    assert made.limit is None


@pytest.mark.parametrize(
    ("data", "key", "words"),
    [
        ({"kind": "dflash", "cuont": 3}, "top.cuont", "did you mean 'count'?"),
        ({"kind": "dflush"}, "top.kind", "did you mean 'dflash'?"),
        ({}, "top.kind", "is required"),
        ({"kind": "dflash", "count": True}, "top.count", "must be a whole number"),
        ({"kind": "dflash", "count": "3"}, "top.count", "must be a whole number"),
        ({"kind": "dflash", "count": -1}, "top", "must not be negative"),
        ({"kind": "dflash", "inner": [1]}, "top.inner", "must be a map"),
        ({"kind": "dflash", "inner": {"rate": "fast"}}, "top.inner.rate", "must be a number"),
        ({"kind": "dflash", "inner": {"names": "a"}}, "top.inner.names", "must be a list"),
        ({"kind": "dflash", "inner": {"names": ["a", 2]}}, "top.inner.names[1]", "must be text"),
        ({"kind": "dflash", "table": {"x": {"rte": 1}}}, "top.table.x.rte", "did you mean 'rate'?"),
        ({"kind": "dflash", "either": {"rte": 1}}, "top.either.rte", "did you mean 'rate'?"),
        ({"kind": "dflash", "limit": "no"}, "top.limit", "must be a whole number"),
    ],
)
def test_wrong_values_name_file_key_and_fix(data: dict[str, Any], key: str, words: str) -> None:
    error = failure(**data)
    assert error.file == "f.yaml"
    assert error.key == key
    assert words in str(error)


def test_a_section_is_read_by_its_dotted_key(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("a:\n  b: {rate: 2, names: [x]}\n")
    assert section("a.b", Inner, path) == Inner(rate=2.0, names=("x",))
    with pytest.raises(ConfigError, match="did you mean 'b'"):
        section("a.bb", Inner, path)


@pytest.mark.parametrize(
    ("text", "words"), [("a: [", "not valid YAML"), ("- 1\n", "not a map"), (None, "run `draftmill compose`")]
)
def test_a_params_file_that_cannot_be_used_says_so(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "params.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        params(path)
