"""benchmarks/extract.py: all engines agree on the five shapes, and paths stay cheap."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "extract.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("extract_benchmark", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", range(5))
def test_engines_agree_and_paths_are_cheap(benchmark: ModuleType, shape: int) -> None:
    seconds = benchmark.compare_paths(benchmark.SHAPES[shape], rows=60, repeats=5)
    assert set(seconds) == {"decode", "draftmill", "by hand", "python-jsonpath", "jmespath"}
    # Twice the limit of the benchmark: other work on the machine must not fail a test.
    assert seconds["draftmill"] < 2 * benchmark.PATHS_LIMIT * seconds["decode"]
    assert seconds["draftmill"] < seconds["python-jsonpath"] / 4


def test_a_stage_is_measured(benchmark: ModuleType, tmp_path: Path) -> None:
    shape = benchmark.SHAPES[1]
    for suffix in (".jsonl", ".parquet"):
        file = tmp_path / f"rows{suffix}"
        assert benchmark.write_rows(shape, file, megabytes=0.2) > 10
        benchmark.read_only(file, shape)
        measured = benchmark.stage(shape, file)
        assert measured["cpu"] > 0 and measured["peak_kib"] > 10_000


def test_memory_does_not_grow_with_the_rows(benchmark: ModuleType, tmp_path: Path) -> None:
    assert benchmark.compare_memory(tmp_path, 10_000, 50_000) <= benchmark.MEMORY_LIMIT


@pytest.mark.slow
def test_memory_does_not_grow_to_a_million_rows(benchmark: ModuleType, tmp_path: Path) -> None:
    assert benchmark.compare_memory(tmp_path, 10_000, 1_000_000) <= benchmark.MEMORY_LIMIT
