"""Public sample files of many projects: a declaration each, and what `inspect` proposes, against plain code."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from declared import ROOT, Extracted, extract
from truth import TRUTH, WANTED, WHOLE_FILES, Chat, Turn, arguments, load

from draftmill.errors import DataError
from draftmill.extract import Source
from draftmill.inspect import inspect, yaml_text

SAMPLES = ROOT.parent / "shared" / "samples"
DECLARATIONS = Path(__file__).parent / "declarations"
MAX_LINES = 14

pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public sample files are not beside this checkout")

# What a person adds to what `inspect` writes. In the first two the rows are no list of turns with roles and texts.
BY_HAND = {
    "openhands/trajs_basic.json": "role by filters over events, and the model's message inside them",
    "pydantic-ai/cassettes_as_rows.jsonl": "where the answer was 200; roles of tool results; calls of three vendors",
    "toolbench/G1_query.json": "tools: {each: api_list, name: api_name, description: api_description}",
}
NO_CONVERSATION = {
    "adp/omniact.sample_raw.json": "no conversation and no known columns",
    "data-juicer/demo-dataset.csv": "no conversation and no known columns",
    "data-juicer/demo-dataset.parquet": "no conversation and no known columns",
    "open-instruct/sft_sample.jsonl": "Git LFS pointer",
}


def declarations() -> dict[str, dict[str, Any]]:
    """{sample file: its declaration}, the paths made absolute."""
    found = {}
    for path in sorted(DECLARATIONS.glob("*.yaml")):
        declaration = yaml.safe_load(path.read_text(encoding="utf-8"))
        file = declaration["source"]["files"]
        declaration["source"]["files"] = str(SAMPLES / file)
        found[file] = declaration
    return found


def expected(file: str, keep: str, everything: bool) -> tuple[int, int, int, list[Chat]]:
    """(rows, filtered, rejected, chats) that plain code finds; `everything`: no row is filtered."""
    rows = load(SAMPLES / file)
    rows = [rows] if file in WHOLE_FILES else rows
    wanted = rows if everything else [row for row in rows if WANTED.get(file, lambda _: True)(row)]
    chats = [TRUTH[file](row).cut(keep) for row in wanted]
    fit = [chat for chat in chats if chat is not None]
    return len(rows), len(rows) - len(wanted), len(chats) - len(fit), fit


def comparable(chat: Chat) -> str:
    turns = [[turn.role, turn.text, turn.calls, turn.reasoning] for turn in chat.turns]
    return json.dumps([turns, chat.tools], sort_keys=True)


def recorded(record: Mapping[str, Any]) -> Chat:
    """A record of extract as plain code would have read it."""
    turns = []
    for message in record["messages"]:
        functions = [call["function"] for call in message.get("tool_calls", ())]
        calls = [(function["name"], arguments(function["arguments"])) for function in functions]
        turns.append(Turn(message["role"], message["content"], calls, message.get("reasoning", "")))
    return Chat(turns, [spec["function"] for spec in record["tools"] or ()])


def key(chat: Chat) -> str:
    """What makes two rows duplicates: the same user turns and tools."""
    return json.dumps([[turn.text for turn in chat.turns if turn.role == "user"], chat.tools], sort_keys=True)


def check(file: str, result: Extracted, keep: str, everything: bool = False) -> None:
    """The funnel is that of plain code, and every record is a chat that it finds too, to the last number."""
    rows, filtered, rejected, chats = expected(file, keep, everything)
    assert (result.rows, result.filtered, result.rejects.total()) == (rows, filtered, rejected)
    assert result.kept + result.duplicates == len(chats)
    by_key = defaultdict(set)
    for chat in chats:
        by_key[key(chat)].add(comparable(chat))
    kept = [recorded(record) for record in result.records]
    assert sorted(map(key, kept)) == sorted(by_key)
    for chat in kept:
        assert comparable(chat) in by_key[key(chat)]


def keep_of(declaration: Mapping[str, Any]) -> str:
    """The default rule, as the documentation says it."""
    schema = declaration["schema"]
    if "keep" in schema:
        return str(schema["keep"])
    recorded_answers = declaration.get("answer") == "dataset"
    return "full" if recorded_answers else "first_user" if "prompt" in schema else "to_last_user"


def test_every_sample_file_is_accounted_for() -> None:
    files = {str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*") if path.is_file()} - {"SOURCES.md"}
    assert len(files) == 54
    assert files == set(TRUTH) | set(NO_CONVERSATION)
    assert set(declarations()) == set(TRUTH)


def test_declarations_are_short() -> None:
    for path in DECLARATIONS.glob("*.yaml"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES, path.name


@pytest.mark.parametrize("file", TRUTH)
def test_a_declaration_gives_the_right_records(file: str, tmp_path: Path) -> None:
    declaration = declarations()[file]
    result = extract(declaration, tmp_path)
    check(file, result, keep_of(declaration))
    assert result.unseen == []


@pytest.mark.parametrize("file", [file for file in TRUTH if file not in BY_HAND])
def test_what_inspect_writes_is_right_unedited(file: str, tmp_path: Path) -> None:
    found = inspect(Source(files=str(SAMPLES / file)))
    declaration = yaml.safe_load(yaml_text(found.declaration, found.proposal.notes))
    result = extract(declaration, tmp_path)
    check(file, result, keep_of(declaration), everything=True)
    assert result.unseen == []


def test_inspect_is_right_for_at_least_forty() -> None:
    assert len(TRUTH) - len(BY_HAND) >= 40


@pytest.mark.parametrize("file", NO_CONVERSATION)
def test_other_files_give_the_right_error(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from draftmill.cli.inspect import app

    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, [str(SAMPLES / file)])
    assert isinstance(outcome.exception, DataError) and NO_CONVERSATION[file] in str(outcome.exception)
    assert file.rsplit("/", 1)[1] in str(outcome.exception)
