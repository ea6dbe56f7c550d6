"""The tutorial of docs/declare.md does what it shows, and names every key there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from extracting import extract, failure

from draftmill.extract.validation import SCHEMA_FILE

PAGE = (Path(__file__).parents[1] / "docs/declare.md").read_text(encoding="utf-8")
ROW = json.loads(re.findall(r"```json\n(.*?)\n```", PAGE, re.S)[0])
FIRST, LAST = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S))


def test_the_first_try_fails_as_shown(tmp_path: Path) -> None:
    found = failure(tmp_path, FIRST["schema"], *[ROW] * 3)
    assert "$['payload'] is a text that holds JSON" in found
    assert "fix: add  decode: [payload]" in found
    found = failure(tmp_path, {**FIRST["schema"], "decode": ["payload"]}, *[ROW] * 3)
    assert "for the labels 'customer', 'policy', 'agent'" in found


def test_the_declaration_in_the_end_gives_the_conversation(tmp_path: Path) -> None:
    got = extract(tmp_path, LAST["schema"], {**ROW, "status": "solved", "ticket": "T-101"}, ROW, checked=True)
    assert got.ids == ["T-101"]
    assert [role for role, _ in got.only] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("part", ["", "source", "schema", "block"])
def test_every_key_is_explained(part: str) -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    keys = (schema["$defs"][part] if part else schema)["properties"]
    missing = [key for key in keys if f"`{key}" not in PAGE and f"### {key}" not in PAGE]
    assert missing == []
