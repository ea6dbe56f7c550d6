"""The tutorial of docs/declare.md does what it shows, to the letter, and the page names every key there is."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from draftmill.cli import main
from draftmill.extract.validation import SCHEMA_FILE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/declare.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(yaml|text)\n(.*?)```", PAGE, re.DOTALL)


def test_the_tutorial_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf/dataset").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/support.jsonl", tmp_path / "docs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    codes = []
    for kind, text in BLOCKS:
        if kind == "yaml":
            (tmp_path / "conf/dataset/support.yaml").write_text(text, encoding="utf-8")
            continue
        command, _, shown = text.partition("\n")
        monkeypatch.setattr(sys, "argv", command.removeprefix("$ ").split())
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert printed.out + printed.err == shown
        codes.append(ended.value.code)
    assert codes == [0, 1, 1, 0]


def test_the_row_shown_is_the_first_of_the_file() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert shown == (ROOT / "docs/support.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[0]


@pytest.mark.parametrize("part", ["", "source", "schema", "block"])
def test_every_key_is_explained(part: str) -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    keys = (schema["$defs"][part] if part else schema)["properties"]
    missing = [key for key in keys if f"`{key}" not in PAGE and f"### {key}" not in PAGE]
    assert missing == []
