"""Files that appear whole or not at all, digests and ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from draftmill import console, files
from draftmill.errors import BuildError, ConfigError, UsageError, guard, nearest


def test_keys_that_are_no_texts_are_digested_too() -> None:
    made = {"on": 1, 0: 2, True: 3}
    assert files.canonical(made) == files.canonical(dict(reversed(made.items()))) == b'{"0":2,"on":1,"true":3}'


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.txt"
    files.write_text(path, "first")
    with pytest.raises(RuntimeError), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "first"
    assert [entry.name for entry in path.parent.iterdir()] == ["out.txt"]


def test_the_digest_ignores_the_order_of_keys_and_survives_lone_surrogates() -> None:
    assert files.digest({"a": 1, "b": [2]}) == files.digest({"b": [2], "a": 1})
    assert files.digest("\ud800") != files.digest("\ud801")
    assert len(files.digest(None)) == 32


def test_ranks_are_nested_and_uniform() -> None:
    ranks = [files.rank(0, "d", str(i)) for i in range(4000)]
    assert len(set(ranks)) == 4000
    below = sum(value < 2**62 for value in ranks)
    assert 900 < below < 1100  # a quarter of 4000, six standard deviations wide
    assert files.rank(1, "d", "0") != ranks[0] != files.rank(0, "e", "0")


def test_counters_must_sum(tmp_path: Path) -> None:
    files.write_metrics(tmp_path, 5, 3, {"duplicate": 2, "where": 0}, turns=7)
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "rows_in": 5,
        "rows_out": 3,
        "dropped": {"duplicate": 2},
        "turns": 7,
    }
    with pytest.raises(AssertionError):
        files.write_metrics(tmp_path, 5, 3, {"duplicate": 1})


def test_json_lines_take_any_text(tmp_path: Path) -> None:
    files.write_jsonl(tmp_path / "x.jsonl", [{"t": "é\n\ud800"}])
    assert json.loads((tmp_path / "x.jsonl").read_bytes()) == {"t": "é\n\ud800"}


def test_control_characters_never_reach_a_terminal() -> None:
    assert console.printable("a\x1b[31mb\x07\u202e\tc\n") == "a\\x1b[31mb\\x07\\x202e\tc\n"
    assert console.excerpt("x" * 100, 10) == "x" * 9 + "…"
    assert console.excerpt("two\nlines") == "two\\nlines"


def test_progress_tells_rate_and_rest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(console, "PLAIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with console.progress("reading", total=10) as shown:
        shown.advance(4, "2 rejects")
    line = capsys.readouterr().err
    assert line.startswith("reading: 4/10 rows, ")
    assert line.endswith(" s left, 2 rejects\n")


@pytest.mark.parametrize(
    ("error", "code"), [(BuildError("x"), 1), (ConfigError("x"), 1), (UsageError("x"), 2), (KeyboardInterrupt(), 130)]
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as left:
        guard(fail)
    assert left.value.code == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_message_has_place_found_and_fix() -> None:
    error = BuildError("is wrong", file="a.yaml", key="b.c", found="3", fix="write 4")
    assert str(error) == "a.yaml: b.c: is wrong\n  found: 3\n  fix: write 4"
    assert nearest("trun", ["turns", "text"]) == "turns"
    assert nearest("zzz", ["turns"]) is None
