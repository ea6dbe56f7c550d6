"""The JSONPath Compliance Test Suite, all cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftmill import paths

SUITE = Path(__file__).parents[2] / "shared" / "cts" / "cts.json"
CASES: list[dict[str, Any]] = json.loads(SUITE.read_text("utf-8"))["tests"] if SUITE.exists() else []


@pytest.mark.skipif(not CASES, reason="../shared/cts/cts.json is not beside this checkout")
def test_the_suite_is_complete() -> None:
    assert len(CASES) == 703


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    if case.get("invalid_selector"):
        with pytest.raises(paths.PathError):
            paths.compile(case["selector"])
        return
    found = paths.compile(case["selector"])(case["document"])
    assert found in case.get("results", [case.get("result")])
    again = paths.compile(paths.compile(case["selector"]).canonical)
    assert again.canonical == paths.compile(case["selector"]).canonical
    assert again(case["document"]) == found
