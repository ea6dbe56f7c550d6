"""Readers: every form of file, exact values, places, what is no data, and cutting into chunks."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from draftmill.errors import DataError
from draftmill.extract import readers
from draftmill.extract.readers import ChunkReader, Item, Reject, chunks, read
from draftmill.extract.readers import files as reader_files
from draftmill.extract.source import Source

ROWS = [{"a": 0.7, "b": None, "c": "ä\u2028b"}, {"a": 29.97002997002997, "d": [1, {"x": -0.0}]}, {"a": 2**70}]


def values(*paths: Path, rows: str | None = None) -> list[Any]:
    return [item.value for item in read(Source(files=[str(path) for path in paths], rows=rows))]


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def jsonl(rows: list[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


FORMS: dict[str, Callable[[list[Any]], str | bytes]] = {
    "a.jsonl": jsonl,
    "a.ndjson": jsonl,
    "lines.json": jsonl,
    "bom.jsonl": lambda rows: "\ufeff" + jsonl(rows),
    "crlf.jsonl": lambda rows: jsonl(rows).replace("\n", "\r\n"),
    "no_end.jsonl": lambda rows: jsonl(rows).rstrip(),
    "blank_lines.jsonl": lambda rows: "\n" + jsonl(rows).replace("\n", "\n \n"),
    "array.json": lambda rows: json.dumps(rows),
    "pretty.json": lambda rows: json.dumps(rows, indent=2),
    "bom.json": lambda rows: "\ufeff\n" + json.dumps(rows, indent=2, ensure_ascii=False),
    "no_suffix": jsonl,
    "a.jsonl.gz": lambda rows: gzip.compress(jsonl(rows).encode()),
    "a.jsonl.zst": lambda rows: zstandard.compress(jsonl(rows).encode()),
    "frames.jsonl.zst": lambda rows: b"".join(zstandard.compress(jsonl([row]).encode()) for row in rows),
    "packed_without_saying_so.jsonl": lambda rows: gzip.compress(jsonl(rows).encode()),
    "array.json.gz": lambda rows: gzip.compress(json.dumps(rows).encode()),
}


@pytest.mark.parametrize("name", FORMS)
def test_all_forms_give_the_same_exact_rows(tmp_path: Path, name: str) -> None:
    found = values(write(tmp_path / name, FORMS[name](ROWS)))
    assert found == ROWS
    assert json.dumps(found) == json.dumps(ROWS)


def test_one_object_is_one_row(tmp_path: Path) -> None:
    row = {"trajectory": [1, 2], "n": 2**80}
    assert values(write(tmp_path / "a.traj", json.dumps(row, indent=1))) == [row]
    assert values(write(tmp_path / "b.json", json.dumps(row))) == [row]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_documents_over_several_lines_and_with_commas(tmp_path: Path, name: str) -> None:
    rows = [{"a": 2**80, "b": [1]}, {"a": "}\n{", "b": []}, {"c": None}]
    printed = [json.dumps(row, indent=2) for row in rows]
    for text in ("\n".join(printed), ",\n".join(printed) + ",\n", "[" + ",\n".join(printed) + ",\n]\n"):
        assert values(write(tmp_path / name, text)) == rows, text
    assert values(write(tmp_path / name, "".join(json.dumps(row) + ",\r\n" for row in rows))) == rows


def test_rows_that_are_lists(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.jsonl", "[1, 2]\n[3]\n")) == [[1, 2], [3]]
    assert values(write(tmp_path / "a.json", "[1, 2]\n[3]\n")) == [[1, 2], [3]]
    assert values(write(tmp_path / "b.json", "[[1, 2],\n[3]]\n")) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("rows", "name", "text", "expected"),
    [
        ("$", "a.json", "[1, 2]", [[1, 2]]),
        ("data[*]", "a.json", '{"data": [{"x": 1}, {"x": 2}]}', [{"x": 1}, {"x": 2}]),
        ("*", "a.json", '{"q1": {"x": 1}, "q2": {"x": 2}}', [{"x": 1}, {"x": 2}]),
        ("[*].data[*]", "a.jsonl", '{"data": [1, 2]}\n{"data": [3]}\n', [1, 2, 3]),
        ("$", "a.jsonl", '{"x": 1}\n\n{"x": 2}\n', [[{"x": 1}, {"x": 2}]]),
        ("$[?@.k == 'b']", "a.csv", "k,v\na,1\nb,2\n", [{"k": "b", "v": "2"}]),
    ],
)
def test_what_a_row_is(tmp_path: Path, rows: str, name: str, text: str, expected: list[Any]) -> None:
    assert values(write(tmp_path / name, text), rows=rows) == expected


def test_csv_and_tsv(tmp_path: Path) -> None:
    table = [["id", "text"], ["007", 'say "hi",\nplease'], ["1.0", ""], ["3", "ünï"]]
    for name, dialect in (("a.csv", "excel"), ("a.tsv", "excel-tab")):
        with open(tmp_path / name, "w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file, dialect).writerows(table)
        assert values(tmp_path / name) == [dict(zip(table[0], row, strict=True)) for row in table[1:]]


def test_bad_csv_rows(tmp_path: Path) -> None:
    found = list(read(Source(files=str(write(tmp_path / "a.csv", b"a,b\n1\n\xff,2\n3,4\n")))))
    assert [(item.number, getattr(item.value, "reason", item.value)) for item in found] == [
        (1, "csv_cells"),
        (2, "invalid_utf8"),
        (3, {"a": "3", "b": "4"}),
    ]
    with pytest.raises(DataError, match="not well-formed csv at line 2"):
        values(write(tmp_path / "b.csv", 'a,b\n1,"2\n'))
    with pytest.raises(DataError, match="two columns named 'a'"):
        values(write(tmp_path / "c.csv", "a,b,a\n1,2,3\n"))


# -- Parquet ---------------------------------------------------------------------------------------


def test_parquet_reads_only_the_columns_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", None], "secret": ["s", "t"]}), tmp_path / "a.parquet")
    source = Source(files=str(tmp_path / "a.parquet"))
    assert [item.value for item in read(source, frozenset({"b", "none"}))] == [{"b": "x"}, {"b": None}]
    assert [item.value for item in read(source, frozenset({"none"}))] == [{}, {}]
    assert [item.value for item in read(source)] == [
        {"a": 1, "b": "x", "secret": "s"},
        {"a": 2, "b": None, "secret": "t"},
    ]
    assert all(chunk.arrow for chunk in chunks(source))


def test_parquet_values_become_plain_json(tmp_path: Path) -> None:
    from datetime import UTC, date, datetime, timedelta

    cells = {
        "when": [datetime(2026, 1, 2, tzinfo=UTC), None],
        "day": [date(2026, 1, 2), None],
        "took": [timedelta(seconds=1), None],
        "money": [Decimal("0.70"), None],
        "raw": [b"text\xff", None],
        "score": [float("nan"), 0.7],
        "map": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
        "deep": [[{"x": float("inf"), "y": b"z"}], [None]],
        "int": [2**63 - 1, -1],
        "tag": pa.array(["a", "b"]).dictionary_encode(),
        "bytes": pa.array([b"x", None]).dictionary_encode(),
        "view": pa.array([b"v", None], pa.binary_view()),
        "views": pa.array([[b"v"], None], pa.list_view(pa.binary())),
        "key": pa.array([b"0123456789abcdef", None], pa.uuid()),
    }
    pq.write_table(pa.table(cells), tmp_path / "a.parquet")
    first, second = values(tmp_path / "a.parquet")
    assert first == {
        "when": "2026-01-02T00:00:00+00:00",
        "day": "2026-01-02",
        "took": "0:00:01",
        "money": "0.70",
        "raw": "text\\xff",
        "score": None,
        "map": {"k": 1.5},
        "deep": [{"x": None, "y": "z"}],
        "int": 2**63 - 1,
        "tag": "a",
        "bytes": "x",
        "view": "v",
        "views": ["v"],
        "key": "30313233-3435-3637-3839-616263646566",
    }
    assert second == {**dict.fromkeys(cells), "score": 0.7, "deep": [None], "int": -1, "tag": "b"}


def test_parquet_values_that_python_cannot_hold(tmp_path: Path) -> None:
    texts = pa.array([b"ok", b"\xff", b"fine"]).cast(pa.binary()).view(pa.string())
    moments = pa.array([0, 0, 10**18], pa.int64()).view(pa.timestamp("us"))
    pq.write_table(pa.table({"text": texts, "when": moments}), tmp_path / "a.parquet")
    first, second, third = values(tmp_path / "a.parquet")
    assert first == {"text": "ok", "when": "1970-01-01T00:00:00"}
    assert (second.reason, third.reason) == ("invalid_utf8", "bad_value")


def test_columns_with_points_and_with_one_name(tmp_path: Path) -> None:
    dotted = pa.table({"a.b": ["x"], "a": [{"b": "y", "c": "z"}]})
    pq.write_table(dotted, tmp_path / "a.parquet")
    source = Source(files=str(tmp_path / "a.parquet"))
    assert [item.value for item in read(source, frozenset({"a.b"}))] == [{"a.b": "x"}]
    assert [item.value for item in read(source, frozenset({"a"}))] == [{"a": {"b": "y", "c": "z"}}]
    pq.write_table(pa.table([[1], [2], [3]], names=["a", "a", "b"]), tmp_path / "a.parquet")
    assert [item.value for item in read(source, frozenset({"b"}))] == [{"b": 3}]
    with pytest.raises(DataError, match="two columns named 'a'"):
        list(read(source, frozenset({"a"})))


def test_damaged_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": list(range(1000))}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    for broken in (data[: len(data) // 2], data[:100] + b"\0" * 500 + data[600:]):
        with pytest.raises(DataError, match=r"b\.parquet"):
            values(write(tmp_path / "b.parquet", broken))
    with pytest.raises(DataError, match="PAR1"):
        values(write(tmp_path / "c.parquet", '{"a": 1}\n'))


# -- bad input -------------------------------------------------------------------------------------


def test_bad_lines_are_counted_and_placed(tmp_path: Path) -> None:
    lines = [
        b'{"a": 1}',
        b'{"a": ',
        b"",
        b'{"a": "\xff"}',
        b"\x00\x00",
        b'{"a": "x\x00y"}',
        b"nonsense",
        b'{"a": 2} {"a": 3}',
    ]
    lines += [
        b'{"a": NaN, "b": [Infinity, -Infinity], "c": "NaN"}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b"[" * 3000,
        b'{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"9" * 400 + b"}",
        b"7",
    ]
    found = list(read(Source(files=str(write(tmp_path / "a.jsonl", b"\n".join(lines))))))
    assert [(item.number, getattr(item.value, "reason", item.value)) for item in found] == [
        (1, {"a": 1}),
        (2, "truncated_json"),
        (4, "invalid_utf8"),
        (5, "not_json"),
        (6, "not_json"),
        (7, "not_json"),
        (8, "not_json"),
        (9, {"a": None, "b": [None, None], "c": "NaN"}),
        (10, "number_too_large"),
        (11, "not_json"),
        (12, "nested_too_deep"),
        (13, "nested_too_deep"),
        (14, "number_too_large"),
        (15, {"a": int("9" * 400)}),
        (16, 7),
    ]


def test_numbers_of_array_elements_that_python_cannot_hold(tmp_path: Path) -> None:
    elements = (f'{{"a": {number}}}' for number in ("1", "1e999", "9" * 5000, "9" * 400, "2"))
    found = [
        getattr(value, "reason", value) for value in values(write(tmp_path / "a.json", f"[{', '.join(elements)}]"))
    ]
    assert found == [{"a": 1}, "number_too_large", "number_too_large", {"a": int("9" * 400)}, {"a": 2}]


def test_a_reject_holds_nothing_of_the_row(tmp_path: Path) -> None:
    found = list(read(Source(files=str(write(tmp_path / "a.jsonl", '{"password": "hunter2", "a": \n')))))
    assert "hunter2" not in repr(found) and "password" not in repr(found)


def test_a_line_of_20_mb(tmp_path: Path) -> None:
    row = {"text": "x" * 20_000_000}
    assert values(write(tmp_path / "a.jsonl", jsonl([row, {"a": 1}]))) == [row, {"a": 1}]


def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_files, "LONGEST_LINE", 3 << 20)
    path = write(tmp_path / "a.jsonl", jsonl([{"a": "x" * (8 << 20)}, {"a": 1}, {"a": "y" * (8 << 20)}]))
    first, second, third = values(path)
    assert first.reason == third.reason == "line_too_long"
    assert second == {"a": 1}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b"", "empty"),
        ("a.parquet", b"", "empty"),
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n", "Git LFS pointer"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n", "git lfs pull"),
        ("a.json", b"\n<!DOCTYPE html>\n<html></html>", "HTML page"),
        ("a.csv", b"<html>", "HTML page"),
        ("a.jsonl", "{}".encode("utf-16"), "UTF-16"),
        ("a.json", b'{"a": 1} {"a": 2} x', "after document 2"),
        ("a.jsonl", b'{\n"a": 1}\n{\n"a": \n', "document 2 in the file breaks off"),
        ("a.csv", b"question;answer\nwhy?;so\n", "separated by ';'"),
        ("a.json", b"hello there", "is not JSON"),
        ("a.json", b'{"a": 1}}', "is not JSON after document 1"),
        ("a.json", b'[{"a": 1}, {"a": ', "element 2"),
        ("a.json", b'[{"a": 1}, {"a" 2}' + b" " * 99 + b"]", "element 2 of the JSON array breaks off: Expecting ':'"),
        ("a.json", b'[{"a": 1}, {"a": 2}', "after element 2"),
        ("a.json", b'[{"a": 1} {"a": 2}]', "after element 1"),
        ("a.json", b'[{"a": 1}] {"a": 2}', "more after the JSON array"),
        ("a.json", b"[" * 100_000, "element 1 of the JSON array is nested too deep"),
        ("a.jsonl.gz", b'{"a": 1}\n{"a": 2}\n', "is named .gz but is not packed at all"),
        ("a.jsonl.gz", zstandard.compress(b'{"a": 1}\n'), "name it by what it is, such as a.jsonl.zst"),
        ("a.jsonl.gz", b"<!doctype html>", "HTML page"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-20], "ends in the middle"),
        ("a.jsonl.zst", zstandard.compress(b'{"a": 1}\n' * 999)[:-5], "ends in the middle"),
        ("a.jsonl.gz", gzip.compress(random.Random(0).randbytes(9000), mtime=0)[:4000] + b"\0" * 900, ".gz file"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 100, ".zst file is damaged"),
    ],
)
def test_what_is_no_data(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    with pytest.raises(DataError) as caught:
        values(write(tmp_path / name, data))
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_elements_that_are_not_utf8(tmp_path: Path) -> None:
    first, second, third = values(
        write(tmp_path / "a.json", b'[{"a": "\xff"}, {"a": "\xc3\xa9"}, {"a": "\\ud83d\\ude00"}]')
    )
    assert first.reason == "invalid_utf8"
    assert (second, third) == ({"a": "é"}, {"a": "😀"})
    text = '[{"a": "\\ud83d"}, {"a": "\\uD83D\\uDE00"}, {"a": 1e999}, {"a": NaN}, {"a": 1e99}]'
    first, *middle, last = values(write(tmp_path / "b.json", text))
    assert (first.reason, middle[1].reason) == ("not_json", "number_too_large")
    assert [middle[0], middle[2], last] == [{"a": "😀"}, {"a": None}, {"a": 1e99}]


def test_empty_containers_give_no_rows(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.json", " [ ] ")) == []
    assert values(write(tmp_path / "a.csv", "a,b\n")) == []
    assert values(write(tmp_path / "a.jsonl", "\n\n")) == []


# -- which files -----------------------------------------------------------------------------------


def test_globs_folders_and_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "sub" / ".hidden").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "sub/c.json", "README.md", ".x.jsonl", "sub/.hidden/d.jsonl"):
        write(folder / name, jsonl([{"file": name}, {"file": name}]))
    names = [item.value["file"] for item in read(Source(files=str(folder)))][::2]
    assert names == ["a.jsonl", "b.jsonl", "sub/c.json"]
    globbed = list(read(Source(files=[str(folder / "*.jsonl"), str(folder / "a.jsonl")])))
    assert [item.value["file"] for item in globbed][::2] == [".x.jsonl", "a.jsonl", "b.jsonl"]
    assert [item.number for item in globbed] == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("trian.jsonl", "did you mean"),
        ("*.csv", "no file matches"),
        ("nothere/a.jsonl", "nor its folder"),
        ("empty", "no data file"),
    ],
)
def test_files_that_are_not_there(tmp_path: Path, wanted: str, words: str) -> None:
    write(tmp_path / "train.jsonl", "{}\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as caught:
        values(tmp_path / wanted)
    assert words in str(caught.value) and wanted in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "says nowhere"),
        ({"hub": "a/b", "files": "c"}, "exclude"),
        ({"files": "c", "split": "train"}, "belongs to `hub`"),
        ({"hub": "https://huggingface.co/datasets/a/b"}, "owner/name"),
        ({"hub": "a/b", "split": "train", "data_files": "*.json"}, "instead of"),
        ({"files": "a", "rows": "data["}, "is missing"),
    ],
)
def test_sources_that_contradict_themselves(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        Source(**given)


def test_the_sample_stands_in() -> None:
    source = Source(hub="a/b", split="train", sample="data/samples/x.jsonl", rows="$")
    assert source.pick("sample") == Source(files="data/samples/x.jsonl", rows="$")
    assert source.pick("real") == Source(hub="a/b", split="train", rows="$")
    assert Source(sample="x").pick("real") == Source(files="x")
    assert Source(files="y").pick("sample") == Source(files="y")


# -- chunks ----------------------------------------------------------------------------------------


def gathered(source: Source) -> list[Item]:
    """All items, chunks read in reverse order, as several workers might."""
    parts = {}
    for index, chunk in reversed(list(enumerate(chunks(source)))):
        reader = ChunkReader(chunk)
        parts[index] = (chunk.file, list(reader), reader.count)
    before, items = dict.fromkeys((file for file, _, _ in parts.values()), 0), []
    for _, (file, found, count) in sorted(parts.items()):
        items += [Item(file, before[file] + number, value) for number, value in found]
        before[file] += count
    return items


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_lines_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, end: str) -> None:
    draw = random.Random(size)
    lines = [
        draw.choice(["", " ", "{bad", json.dumps({"n": draw.randrange(10 ** draw.randrange(1, 40))})])
        for _ in range(60)
    ]
    path = write(tmp_path / "a.jsonl", "\n".join([*lines, '{"n": 1}']) + end)
    whole = list(read(Source(files=str(path))))
    monkeypatch.setattr(readers, "CHUNK_BYTES", size)
    monkeypatch.setattr(reader_files, "BLOCK", max(size // 3, 1))
    assert gathered(Source(files=str(path))) == whole
    expected = [(number, line) for number, line in enumerate([*lines, '{"n": 1}'], 1) if line.strip()]
    assert [item.number for item in whole] == [number for number, _ in expected]
    assert [item.value for item in whole if not isinstance(item.value, Reject)] == [
        json.loads(line) for _, line in expected if line != "{bad"
    ]


def test_row_groups_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"n": list(range(1000))}), tmp_path / "a.parquet", row_group_size=64)
    source = Source(files=str(tmp_path / "a.parquet"))
    whole = list(read(source))
    assert [(item.number, item.value["n"]) for item in whole] == [(n + 1, n) for n in range(1000)]
    for size in (1, 600, 2000):
        monkeypatch.setattr(readers, "CHUNK_BYTES", size)
        assert len(chunks(source)) > 1
        assert gathered(source) == whole


def test_long_numbers_are_found_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftmill.extract.readers import values as reader_values

    for before in range(40):
        for length in (18, 19, 20, 30):
            block = b"x" * before + b"7" * length + b"yy"
            assert reader_values.has_long_number(block) is (length >= 19), (before, length)
    many = b'"12345678",' * 5000
    assert not reader_values.has_long_number(many)
    assert reader_values.has_long_number(many + b"1" * 19)


def test_an_array_is_streamed(tmp_path: Path) -> None:
    with open(tmp_path / "a.json", "w") as file:
        file.write("[\n" + ",\n".join(json.dumps({"n": n, "text": "x" * 9000}) for n in range(4000)) + "\n]\n")
    tracemalloc.start()
    total = sum(item.value["n"] for item in read(Source(files=str(tmp_path / "a.json"))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(range(4000))
    assert peak < 12 << 20


def test_elements_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"n": n, "t": "ä" * n, "f": n / 7} for n in range(60)] + [1234567, 0.25, -1e-7, 1e300, "end", None, True]
    path = write(tmp_path / "a.json", json.dumps(rows, ensure_ascii=False))
    for size in (1, 2, 5, 17, 100):
        monkeypatch.setattr(reader_files, "BLOCK", size)
        assert values(path) == rows


@pytest.mark.parametrize("style", ["json", "compact", "pretty", "lines"])
@pytest.mark.parametrize("seed", range(4))
def test_arrays_of_all_kinds_of_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str, seed: int
) -> None:
    draw = random.Random(seed)

    def element(n: int) -> Any:
        first = draw.choice(["id", "id", "id", "other"])
        nested = [
            {"id": n, "t": draw.choice(['}, {"id"', "x", "ä" * 9, '\\"'])}
            for _ in range(draw.randrange(3) if seed % 2 else 0)
        ]
        rare = draw.choice([1, 0.7, None, float("nan") if seed == 3 else 1e-9, 2**70 if seed else 5])
        return draw.choice([[n], n, "text"]) if draw.random() < 0.02 * seed else {first: n, "n": nested, "r": rare}

    rows = [element(n) for n in range(400)]
    text = {
        "json": json.dumps(rows),
        "compact": json.dumps(rows, separators=(",", ":"), ensure_ascii=False),
        "pretty": json.dumps(rows, indent=2),
        "lines": "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n",
    }[style]
    expected = json.loads(text, parse_constant=lambda _: None)
    path = write(tmp_path / "a.json", text)
    for size in (40, 1000, 1 << 18):
        monkeypatch.setattr(reader_files, "BLOCK", size)
        items = list(read(Source(files=str(path))))
        assert [item.value for item in items] == expected
        assert [item.number for item in items] == list(range(1, 401))


def test_chunks_can_be_handed_to_another_process(tmp_path: Path) -> None:
    import pickle

    path = write(tmp_path / "a.jsonl", jsonl(ROWS))
    for chunk in chunks(Source(files=str(path))):
        assert pickle.loads(pickle.dumps(chunk)) == chunk
        assert replace(chunk).unit == "line"


def damaged(draw: random.Random, data: bytes) -> bytes:
    """`data` with some bytes changed, cut out, doubled or cut off."""
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        place, kind = draw.randrange(len(changed) or 1), draw.randrange(4)
        if kind == 0:
            changed[place : place + 1] = draw.randbytes(1)
        elif kind == 1:
            del changed[place : place + draw.randrange(1, 40)]
        elif kind == 2:
            changed[place:place] = changed[place : place + draw.randrange(1, 40)]
        else:
            del changed[place:]
    return bytes(changed)


@pytest.mark.parametrize("name", [*FORMS, "a.csv", "a.tsv.gz", "a.parquet"])
def test_damaged_files_give_rows_rejects_or_one_clear_error(tmp_path: Path, name: str) -> None:
    rows = [{"a": "x" * 9, "b": "ä"}, {"a": 'y"\n', "b": "z"}] * 6
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        data = (tmp_path / name).read_bytes()
    elif name in FORMS:
        made = FORMS[name](rows)
        data = made if isinstance(made, bytes) else made.encode()
    else:
        data = b"a\tb\nx\ty\n" * 9 if "tsv" in name else 'a,b\n"x\ny",ä\n'.encode() * 9
        data = gzip.compress(data, mtime=0) if name.endswith(".gz") else data
    draw = random.Random(name)
    for _ in range(150):
        path = write(tmp_path / name, damaged(draw, data))
        try:
            for item in read(Source(files=str(path))):
                json.dumps(
                    item.value.reason if isinstance(item.value, Reject) else item.value, ensure_ascii=False
                ).encode()
        except DataError as error:
            assert error.file and error.file.endswith(name)


def test_a_path_that_is_no_file_is_not_offered_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    for name, words in ("pipe.jsonl", "neither a file nor a folder"), ("loop.jsonl", "a link that leads nowhere"):
        with pytest.raises(DataError, match=words) as caught:
            list(read(Source(files=str(tmp_path / name))))
        assert "did you mean" not in str(caught.value)


def test_a_packed_file_is_unpacked_in_small_parts(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(bytes(256 << 20)))
    sizes = [len(block) for block in reader_files.blocks(str(path), "x", "zst")]
    assert path.stat().st_size < 64 << 10, "one read of the file would be all of it"
    assert sum(sizes) == 256 << 20
    assert max(sizes) <= 65 << 20
