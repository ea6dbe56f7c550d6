"""benchmarks/: each starts, and what all of them end with, figures beside their limits."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_figures", FOLDER / "common/figures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("program", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_takes_the_two_options(program: Path) -> None:
    done = subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in done.stdout and "--json" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_runs(program: Path) -> None:
    """Quickly; whether a limit is kept is no test's business."""
    command = [sys.executable, program, "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["figures"]
    assert found and all(set(figure) == {"name", "value", "limit", "better", "ok"} for figure in found)


def test_figures_as_one_json_object(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def measure(quick: bool) -> list[object]:
        asked.append(quick)
        print("on the way")
        return [figures.at_most("growth", 1.5, 1.25), figures.at_least("share", 0.4, 0.4)]

    monkeypatch.setattr(sys, "argv", ["benchmark", "--quick", "--json"])
    figures.main("about", measure, "less")
    told = capsys.readouterr()
    assert asked == [True] and told.err == "on the way\n"
    assert json.loads(told.out) == {
        "figures": [
            {"name": "growth", "value": 1.5, "limit": 1.25, "better": "lower", "ok": False},
            {"name": "share", "value": 0.4, "limit": 0.4, "better": "higher", "ok": True},
        ]
    }
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    with pytest.raises(SystemExit) as caught:
        figures.main("about", measure, "less")
    told = capsys.readouterr()
    assert caught.value.code and asked == [True, False]
    assert [line.split()[-1] for line in told.out.splitlines()] == ["way", "MISSED", "ok"]
