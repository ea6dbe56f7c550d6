"""The border between YAML and code: params.yaml in, frozen dataclasses out, checked once.

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Sampling: ...
    sampling = section("sampling", Sampling)

Past this border nothing sees a raw dict of settings. Each component's dataclass stands beside it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from draftmill.errors import ConfigError, UsageError, did_you_mean
from draftmill.files import parse_yaml
from draftmill.workspace import PARAMS

T = TypeVar("T")


@cache
def _load(path: Path) -> dict[str, Any]:
    import yaml

    if not path.exists():
        raise ConfigError("not there yet", file=path, fix="run `draftmill compose`, or `dvc repro`")
    try:
        loaded = parse_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", file=path) from None
    if not isinstance(loaded, dict):
        raise ConfigError("not a map of sections", file=path, fix="run `draftmill compose`")
    return loaded


def params(path: Path = PARAMS) -> dict[str, Any]:
    """The whole composed configuration, as plain data. Stages use `section` instead."""
    return _load(path.absolute())


def section(key: str, cls: type[T], path: Path = PARAMS) -> T:
    """The dataclass of a dotted key of params.yaml, such as `sampling` or `datasets.swe_agent.source`.

    Raises ConfigError that names the file and the key.
    """
    value: Any = params(path)
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            fix = did_you_mean(part, value) if isinstance(value, Mapping) else None
            raise ConfigError(f"no '{part}' here", file=path, key=key, fix=fix)
        value = value[part]
    return build(cls, value, file=str(path), key=key)


def declared(dataset: str) -> dict[str, Any]:
    """What params.yaml has of a dataset that was named by a person. Raises UsageError with the nearest name."""
    datasets: dict[str, Any] = params().get("datasets") or {}
    if dataset not in datasets:
        raise UsageError(f"no dataset '{dataset}'", file=PARAMS, fix=did_you_mean(dataset, datasets))
    found: dict[str, Any] = datasets[dataset]
    return found


def build(cls: type[T], value: object, *, file: str, key: str) -> T:
    """`value` as an instance of the dataclass `cls`: unknown keys, missing keys and wrong types are ConfigErrors.

    Understands nested dataclasses, Literal, unions, list/tuple/dict of these, and Any. An int is accepted
    for a float, a bool never for a number. A ValueError of `__post_init__` becomes a ConfigError at `key`.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a map, not {_name(value)}", file=file, key=key)
    hints = typing.get_type_hints(cls)
    # A key that is a Python keyword has a field with an underscore: `for` is for_.
    fields = {field.name.removesuffix("_"): field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for name in value:
        if name not in fields:
            fix = did_you_mean(str(name), fields)
            raise ConfigError(f"unknown key '{name}'", file=file, key=f"{key}.{name}" if key else str(name), fix=fix)
    arguments = {}
    for name, field in fields.items():
        where = f"{key}.{name}" if key else name
        if name in value:
            arguments[field.name] = _convert(hints[field.name], value[name], file, where)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError("is required", file=file, key=where)
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ConfigError(str(error), file=file, key=key) from None


def _name(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r}"[:80]


def _convert(hint: Any, value: Any, file: str, key: str) -> Any:
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, file, key)
    if origin is typing.Literal:
        if value in arguments and not (isinstance(value, bool) and True not in arguments and False not in arguments):
            return value
        fix = did_you_mean(str(value), [str(option) for option in arguments])
        raise ConfigError(f"'{value}' is not one of the values allowed here", file=file, key=key, fix=fix)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, file=file, key=key)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            raise ConfigError(f"must be a list, not {_name(value)}", file=file, key=key)
        inner = arguments[0] if arguments else Any
        return origin(_convert(inner, item, file, f"{key}[{i}]") for i, item in enumerate(value))
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"must be a map, not {_name(value)}", file=file, key=key)
        inner = arguments[1] if arguments else Any
        return {name: _convert(inner, item, file, f"{key}.{name}") for name, item in value.items()}
    return _convert_scalar(hint, value, file, key)


def _convert_union(options: tuple[Any, ...], value: Any, file: str, key: str) -> Any:
    if value is None and type(None) in options:
        return None
    failures = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(option, value, file, key)
        except ConfigError as error:
            failures.append(error)
    # The failure that got deepest is about the form the user meant.
    raise max(failures, key=lambda error: len(error.key or ""))


def _convert_scalar(hint: Any, value: Any, file: str, key: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    expected = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
    raise ConfigError(f"must be {expected.get(hint.__name__, hint.__name__)}, not {_name(value)}", file=file, key=key)
