"""Tool calls against the JSON Schema of their tool.

Schemas come from data: references are never fetched, patterns never run (a pattern can be made to take
years), and size and depth are limited.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_MOST_BYTES, _MOST_DEPTH = 200_000, 40
_NEVER = {"pattern", "patternProperties", "format"}
_UNCHECKED = object()


def faults(call: Mapping[str, Any], tools: list[Any] | None) -> str | None:
    """What is wrong with a call, or None: not parsed, no such tool, or arguments that do not fit its schema.

    A schema that is itself broken, too large, or refers outside itself finds no fault.
    """
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    known = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools or ()}
    if name not in known:
        return f"no tool '{name}'"
    if not isinstance(arguments, dict):
        return "the arguments are no JSON object"
    parameters = known[name]
    if not parameters:
        return None
    validator = _validator(json.dumps(parameters, sort_keys=True))
    if validator is None:
        return None
    return _first_fault(validator, arguments)


def _first_fault(validator: Any, arguments: dict[str, Any]) -> str | None:
    from referencing.exceptions import Unresolvable

    try:
        fault = next(iter(validator.iter_errors(arguments)), None)
    except (Unresolvable, RecursionError):
        return None
    except (TypeError, ValueError, KeyError, AttributeError):
        return None  # keywords whose values no schema may have
    return None if fault is None else str(fault.message)[:200]


@lru_cache(maxsize=512)
def _validator(text: str) -> Any:
    """A validator of a schema's JSON text, without a registry: nothing is fetched. None if it is not to be used."""
    import jsonschema
    from referencing import Registry

    if len(text) > _MOST_BYTES:
        return None
    schema = _without_patterns(json.loads(text), _MOST_DEPTH)
    if schema is None or not isinstance(schema, dict):
        return None
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError):
        return None
    return jsonschema.Draft202012Validator(schema, registry=Registry())


def _without_patterns(value: Any, depth: int, names: bool = False) -> Any:
    """The schema without keywords that run patterns; None if it is too deep. `names`: keys are property names."""
    if depth == 0:
        return None
    if isinstance(value, list):
        parts = [_without_patterns(item, depth - 1) for item in value]
        return None if any(p is None and i is not None for p, i in zip(parts, value, strict=True)) else parts
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        if key in _NEVER and not names:
            continue
        kept[key] = _without_patterns(item, depth - 1, names=key == "properties" and not names)
        if kept[key] is None and item is not None:
            return None
    return kept
