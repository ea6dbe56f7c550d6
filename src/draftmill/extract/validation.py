"""A dataset's file checked against its JSON Schema, with messages that name the key and the nearest right one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftmill.errors import ConfigError, did_you_mean, nearest
from draftmill.extract import declaration as declarations

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

SCHEMA_FILE = Path(__file__).parents[3] / "conf" / "schema" / "dataset.schema.json"
DERIVED = ("input", "answer_resolved", "keep_resolved", "flag_resolved")
"""Keys that composing adds; nobody writes them."""


def validate(name: str, declaration: Mapping[str, Any], file: str | None = None) -> None:
    """Check a dataset's whole map: its form, then every path in it.

    Raises ConfigError with file, key, what was found, and the nearest valid key or value.
    """
    file = file or f"conf/dataset/{name}.yaml"
    check_form(declaration, file)
    parsed = declarations.from_map(name, declaration, file, "real")
    quota = declaration.get("quota")
    if isinstance(quota, Mapping) and quota.get("by") and quota["by"] not in parsed.schema.meta:
        by = quota["by"]
        fix = (
            f"add  meta: {{{by}: {by}}}  to schema" if not parsed.schema.meta else did_you_mean(by, parsed.schema.meta)
        )
        raise ConfigError(f"'{by}' is no key of schema.meta", file=file, key="quota.by", fix=fix)


def check_form(declaration: Mapping[str, Any], file: str) -> None:
    """Check the form of a dataset's map only. Raises ConfigError for its gravest mistake."""
    raw = declarations.normalized(declaration)
    written = {key: value for key, value in raw.items() if key not in DERIVED}
    errors = list(_validator().iter_errors(written))
    # An unknown key at the top first: it is why the key that was meant is empty.
    unknown = [error for error in errors if error.validator == "additionalProperties" and not error.absolute_path]
    if errors:
        raise _explained(
            min(unknown or map(_deepest, errors), key=lambda error: -len(error.absolute_path)),
            file,
        )


@cache
def _validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # 1e3 is no whole number here: JSON Schema would take the float, and whoever reads it would not.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    made = extend(Draft202012Validator, type_checker=types)
    validator: Draft202012Validator = made(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    return validator


def _deepest(error: Any) -> Any:
    """Of the alternatives of an anyOf, the mistake in the one that was meant: deepest inside, with most keys known."""
    while error.context:
        fitting = [inner for inner in error.context if inner.validator not in ("type", "enum", "const") or inner.path]
        if not fitting:
            return error
        error = max(fitting, key=_likeness)
    return error


def _likeness(error: Any) -> tuple[int, int, bool, float]:
    """How much an alternative with this mistake looks like the one that was meant."""
    known = error.schema.get("properties", {})
    keys = sum(name in known for name in error.instance) if isinstance(error.instance, Mapping) else 0
    return len(error.absolute_path), keys, error.validator != "required", _nearness(error)


def _nearness(error: Any) -> float:
    """How near the unknown keys of an object are to those that it may have."""
    known = error.schema.get("properties", {})
    if error.validator != "additionalProperties":
        return 0.0
    ratios = [SequenceMatcher(None, str(name), other).ratio() for name in error.instance for other in known]
    return max(ratios, default=0.0)


def _explained(error: Any, file: str) -> ConfigError:
    key = _key(error.absolute_path)
    value = error.instance
    if error.validator == "additionalProperties" or error.validator == "unevaluatedProperties":
        known = error.schema.get("properties", {})
        unknown = next(name for name in value if name not in known)
        where = f"{key}.{unknown}" if key else str(unknown)
        elsewhere = error.parent.schema.get("anyOf", ()) if error.parent else ()
        beside = [name for name in value if name in known]
        if beside and any(unknown in alternative.get("properties", {}) for alternative in elsewhere):
            message = f"`{unknown}` and `{beside[0]}` exclude each other"
            return ConfigError(message, file=file, key=where, fix=f"leave one out: {_hint(error)}")
        return ConfigError(f"unknown key '{unknown}'", file=file, key=where, fix=did_you_mean(str(unknown), known))
    found = json.dumps(value, ensure_ascii=False, default=str)
    found = found if len(found) <= 120 else found[:117] + "..."
    message, fix = _message(error)
    return ConfigError(message, file=file, key=key or None, found=found, fix=fix)


def _message(error: Any) -> tuple[str, str | None]:
    value = error.instance
    options = _options(error.schema)
    hint = _hint(error)
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in value]
            return f"`{missing[0]}` is required", hint
        case "enum" | "const" | "anyOf" | "oneOf" | "type" if options and isinstance(value, str):
            meant = did_you_mean(value, options)
            message = f"'{value}' is not one of the values allowed here"
            return message, hint if hint and error.context and not nearest(value, options) else meant
        case "const":
            return f"must be {json.dumps(error.validator_value)}", hint
        case "pattern":
            return f"'{value}' is not of the form that is understood here", hint
        case "type":
            kinds = error.validator_value
            return f"must be {_kinds(kinds)}, not {_kind(value)}", hint
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            return f"{value} is out of range: {error.message}", hint
        case "minItems" if value:
            return f"must have {error.validator_value} entries, not {len(value)}", hint
        case "minProperties" | "minItems" | "minLength":
            return "must not be empty", hint
        case "anyOf" | "oneOf":
            return f"{_kind(value)} has no form that is understood here", hint
        case _:
            return error.message, hint


def _hint(error: Any) -> str | None:
    """What may stand there, as the schema says it of the place or, in an alternative, of all alternatives."""
    hint: str | None = error.schema.get("description")
    above = error.parent
    return hint or (_hint(above) if above is not None and above.absolute_path == error.absolute_path else None)


def _options(schema: Mapping[str, Any]) -> list[str]:
    """The texts that an enum, or the enums of alternatives, allow."""
    found = [option for option in schema.get("enum", []) if isinstance(option, str)]
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found += _options(alternative)
    return found


_NAMES = {"object": "a map", "array": "a list", "string": "text", "integer": "a whole number", "number": "a number"}


def _kinds(kinds: str | Iterable[str]) -> str:
    listed = [kinds] if isinstance(kinds, str) else list(kinds)
    return " or ".join(_NAMES.get(kind, "true or false" if kind == "boolean" else kind) for kind in listed)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {dict: "a map", list: "a list", str: "text", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _key(path: Iterable[str | int]) -> str:
    key = ""
    for part in path:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key
