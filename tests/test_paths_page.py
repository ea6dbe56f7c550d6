"""docs/paths.md: what it says a path gives, it gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from draftmill import paths

PAGE = (Path(__file__).parents[1] / "docs" / "paths.md").read_text("utf-8")
ROW = json.loads(PAGE.split("```json\n")[1].split("```")[0])
EXAMPLES = re.findall(r"^\| `(.+?)` \| `(.+?)` \| `(\[.*\])` \|$", PAGE, re.MULTILINE)


def test_the_table_was_found() -> None:
    assert len(EXAMPLES) == 16


@pytest.mark.parametrize(("text", "canonical", "matches"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
def test_examples(text: str, canonical: str, matches: str) -> None:
    path = paths.compile(text.replace(r"\|", "|"))
    assert path.canonical == canonical.replace(r"\|", "|")
    assert path(ROW) == json.loads(matches)


def test_the_error_shown_is_the_one_given() -> None:
    with pytest.raises(paths.PathError) as caught:
        paths.compile("turns[role]")
    assert all(line.strip() in PAGE for line in str(caught.value).splitlines())


def test_tests_of_the_filter_table() -> None:
    table = PAGE.split("| test | holds |")[1].split("Patterns are")[0]
    cells = re.findall(r"^\| `([^`]*[@(][^`]*)`", table, re.MULTILINE)
    assert len(cells) == 9
    for cell in cells:
        paths.compile_filter(cell)
