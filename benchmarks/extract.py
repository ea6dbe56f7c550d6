"""How fast paths and the extract stage are, and whether memory stays flat.

    python benchmarks/extract.py [--quick] [--json]

Every figure is a ratio taken side by side on this machine: the path engine against orjson's decoding of
the same rows, the stage against merely reading and decoding the same file, two workers against one. Beside
the stage stands the share that a program would reach which only reads, decodes, and writes the kept texts
as zstd: what no stage can exceed, however it finds them.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Without this folder: its tokenize.py would stand for the module of the standard library that others import.
sys.path[:] = [str(HERE / "common"), *(folder for folder in sys.path if Path(folder).resolve() != HERE)]

import contextlib
import io
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import orjson
import yaml
from extract_rows import SHAPES, Shape
from figures import Figure, at_least, at_most, main

from draftmill import paths
from draftmill.extract.run import run

PATHS_LIMIT, STAGE_LIMIT, WORKERS_LIMIT, MEMORY_LIMIT = 0.4, 0.4, 1.6, 1.25

# In a process of its own: its memory is then the stage's. A few rows first, so that imports are not counted.
STAGE = """
import json, sys, time
from draftmill.extract.run import run
if __name__ == "__main__":
    run("few")
    started, spent = time.perf_counter(), time.process_time()
    run("rows")
    seconds = {"wall": time.perf_counter() - started, "cpu": time.process_time() - spent}
    # Not ru_maxrss: Linux hands a parent's down to its children.
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps({**seconds, "peak_kib": peak}))
"""


def best(run: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs, in seconds of the processor."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    return min(seconds)


# -- paths -----------------------------------------------------------------------------------------


def compare_paths(shape: Shape, rows: int, repeats: int) -> dict[str, float]:
    """Seconds of decoding and of every engine on the same rows; a hand-written loop among them."""
    lines = [orjson.dumps(row) for row in islice(shape.rows(), rows)]
    documents = [orjson.loads(line) for line in lines]
    seconds = {"decode": best(lambda: [orjson.loads(line) for line in lines], repeats)}
    for name, functions in engines(shape).items():
        expected = [found for path in map(paths.compile, shape.paths) for found in path(documents[0])]
        assert [found for function in functions for found in function(documents[0])] == expected, (name, shape.name)
        few = documents if name in ("draftmill", "by hand") else documents[: max(rows // 20, 1)]
        spent = best(lambda few=few, functions=functions: apply(functions, few), 1 if few is not documents else repeats)
        seconds[name] = spent * len(documents) / len(few)
    return seconds


def apply(functions: Iterable[Callable[[Any], Any]], documents: list[Any]) -> None:
    """Every function on every document."""
    for function in functions:
        for document in documents:
            function(document)


def engines(shape: Shape) -> dict[str, list[Callable[[Any], Any]]]:
    """The engines that are installed, each as one function per path of the shape."""
    found: dict[str, list[Callable[[Any], Any]]] = {
        "draftmill": [paths.compile(path) for path in shape.paths],
        "by hand": BY_HAND[shape.name],
    }
    try:
        import jsonpath

        compiled = [jsonpath.compile(paths.compile(path).canonical) for path in shape.paths]
        found["python-jsonpath"] = [path.findall for path in compiled]
    except ImportError:
        pass
    try:
        import jmespath

        searches = [jmespath.compile(text) for text in IN_JMESPATH[shape.name]]
        found["jmespath"] = [search.search for search in searches]
    except ImportError:
        pass
    return found


BY_HAND: dict[str, list[Callable[[Any], Any]]] = {
    "traces": [
        lambda row: [turn["text"] for turn in row["trajectory"] if turn["role"] == "user"],
        lambda row: [row["trajectory"][0]["system_prompt"]],
        lambda row: [row["instance_id"]],
    ],
    "sharegpt": [lambda row: [turn["value"] for turn in row["conversations"] if turn["from"] == "human"]],
    "openai": [
        lambda row: [turn["content"] for turn in row["messages"] if turn["role"] == "user"],
        lambda row: [turn["content"] for turn in row["messages"] if turn["role"] == "system"],
    ],
    "tools": [
        lambda row: [turn["value"] for turn in row["conversations"] if turn["from"] in ("human", "tool")],
        lambda row: [row["tools"]],
    ],
    "http": [
        lambda row: [
            part["text"] for turn in row["body"]["messages"] if turn["role"] == "user" for part in turn["content"]
        ],
        lambda row: [tool["function"]["name"] for tool in row["body"]["tools"]],
    ],
}
IN_JMESPATH = {
    "traces": ["trajectory[?role=='user'].text", "[trajectory[0].system_prompt]", "[instance_id]"],
    "sharegpt": ["conversations[?from=='human'].value"],
    "openai": ["messages[?role=='user'].content", "messages[?role=='system'].content"],
    "tools": ["conversations[?from=='human' || from=='tool'].value", "[tools]"],
    "http": ["body.messages[?role=='user'].content[].text", "body.tools[*].function.name"],
}


# -- the stage -------------------------------------------------------------------------------------


def write_rows(shape: Shape, file: Path, megabytes: float) -> int:
    """Write rows of a shape until the file is so large; how many. The suffix says in which form."""
    size = rows = 0
    kept = []
    with open(file, "wb") as lines:
        for row in shape.rows():
            if size >= megabytes * 1e6:
                break
            line = orjson.dumps(row) + b"\n"
            size, rows = size + len(line), rows + 1
            if file.suffix == ".parquet":
                kept.append(row)
            else:
                lines.write(line)
    if file.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(kept), file, compression="zstd", row_group_size=500)
    return rows


def read_only(file: Path, shape: Shape) -> None:
    """Read and decode a file, as simply as can be: what the stage is measured against."""
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        from draftmill.extract.coverage import columns
        from draftmill.extract.declaration import from_map

        needed = columns(from_map("rows", declaration(shape, file), "rows.yaml", "real").schema)
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(columns=sorted(needed or ()), use_threads=False):
                batch.to_pylist()
        return
    with open(file, "rb") as lines:
        for line in lines:
            orjson.loads(line)


def declaration(shape: Shape, file: Path) -> dict[str, Any]:
    """The dataset as params.yaml has it."""
    schema = {**shape.schema, "expect": {"max_same": 1.0}}
    return {"source": {"files": str(file)}, "schema": schema, "quota": "all", "answer": "regenerate"}


def stage(shape: Shape, file: Path, workers: int = 1) -> dict[str, float]:
    """Seconds (`wall`, `cpu`) and peak memory (`peak_kib`) of the extract stage over a file."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        write_rows(shape, Path(folder, f"few{file.suffix}"), 0.1)
        datasets = {"rows": declaration(shape, file), "few": declaration(shape, Path(f"few{file.suffix}"))}
        params = {"datasets": datasets, "source_mode": "real", "run": {"workers": workers}}
        Path(folder, "params.yaml").write_text(yaml.safe_dump(params))
        Path(folder, "stage.py").write_text(STAGE)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "stage.py"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return measured


def compare_stage(shape: Shape, suffix: str, folder: Path, megabytes: float, repeats: int) -> tuple[float, float]:
    """The stage's rate as a share of the rate of merely reading and decoding, and the most it can be.

    Both in this process, in turns: memory that is new to a process costs either as much as its work.
    """
    file = folder / f"{shape.name}{suffix}"
    write_rows(shape, file, megabytes)
    params = {"datasets": {"rows": declaration(shape, file)}, "source_mode": "real", "run": {"workers": 1}}
    reading = staging = writing = float("inf")
    with tempfile.TemporaryDirectory(dir=folder) as project, contextlib.chdir(project):
        Path("params.yaml").write_text(yaml.safe_dump(params))
        for _ in range(repeats):
            reading = min(reading, best(lambda: read_only(file, shape), 1))
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                staging = min(staging, best(lambda: run("rows"), 1))
            writing = min(writing, best(text_writer(), 1))
    file.unlink()
    return reading / staging, reading / (reading + writing)


def text_writer() -> Callable[[], object]:
    """What writes the texts that the stage kept, and nothing else, as the stage does."""
    import pyarrow.parquet as pq

    texts = pq.read_table("build/extract/rows/rows.parquet", columns=["conversation", "tools"])
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    return lambda: pq.write_table(texts, "texts.parquet", **options)


def compare_workers(folder: Path, megabytes: float, repeats: int) -> float:
    """How many times faster two workers are than one, on a large file of ShareGPT rows."""
    file = folder / "large.jsonl"
    write_rows(SHAPES[1], file, megabytes)
    seconds = [(stage(SHAPES[1], file, 1)["wall"], stage(SHAPES[1], file, 2)["wall"]) for _ in range(repeats)]
    file.unlink()
    one, two = map(min, zip(*seconds, strict=True))
    return one / two


def compare_memory(folder: Path, few: int, many: int) -> float:
    """Peak memory with many rows as a multiple of that with few."""
    peaks = []
    for rows in (few, many):
        file = folder / "rows.jsonl"
        with open(file, "wb") as lines:
            for row in islice(SHAPES[3].rows(), rows):
                lines.write(
                    orjson.dumps({**row, "conversations": row["conversations"][:1] + row["conversations"][3:]}) + b"\n"
                )
        peaks.append(stage(SHAPES[3], file)["peak_kib"])
        file.unlink()
    return peaks[1] / peaks[0]


# -- report ----------------------------------------------------------------------------------------


def measure(quick: bool) -> list[Figure]:
    """All figures."""
    figures: list[Figure] = []
    repeats = 3 if quick else 5
    print(
        f"{'path engines: seconds / decoding':34}"
        + "".join(f"{name:>17}" for name in ("draftmill", "by hand", "python-jsonpath", "jmespath"))
    )
    for shape in SHAPES:
        seconds = compare_paths(shape, 60 if shape.name == "traces" else 1500, repeats)
        decode = seconds.pop("decode")
        print(f"  {shape.name:32}" + "".join(f"{spent / decode:17.3f}" for spent in seconds.values()))
        figures.append(at_most(f"paths_{shape.name}", seconds["draftmill"] / decode, PATHS_LIMIT))
    with tempfile.TemporaryDirectory(prefix="draftmill-bench-") as name:
        folder, size = Path(name), 20 if quick else 150
        print(f"{'the stage: reading and decoding / all':34}{'draftmill':>17}{'nothing but the texts written':>34}")
        for shape in SHAPES:
            for suffix in (".jsonl", ".parquet") if shape.name in ("traces", "sharegpt") else (".jsonl",):
                share, most = compare_stage(shape, suffix, folder, size, repeats)
                print(f"  {shape.name + suffix:32}{share:17.3f}{most:34.3f}", flush=True)
                figures.append(at_least(f"stage_{shape.name}{suffix}", share, STAGE_LIMIT))
        figures.append(at_least("two_workers", compare_workers(folder, 210 if quick else 400, 3), WORKERS_LIMIT))
        few, many = (10_000, 100_000) if quick else (10_000, 1_000_000)
        figures.append(at_most("memory_growth", compare_memory(folder, few, many), MEMORY_LIMIT))
    return figures


if __name__ == "__main__":
    main(__doc__, measure, "smaller files")
