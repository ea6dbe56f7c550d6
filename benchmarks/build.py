"""What the machinery itself costs: CPU seconds of dvc, compose and process starts, for 18, 50 and 100 datasets.

The project's own dvc.yaml with stage programs that copy a few bytes. Each notes its own CPU time, which is taken off:
what is left is the price of declaring work instead of calling it.

    python benchmarks/build.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SIZES = (18, 50, 100)

# Writes every output its stage declares; the bytes depend on nothing, so that only the machinery is timed.
STAGE = """\
import pathlib, sys, time
stage, dataset = pathlib.Path(sys.argv[0]).stem, sys.argv[1] if len(sys.argv) > 1 else ""
folder = pathlib.Path("build", stage, dataset)
folder.mkdir(parents=True, exist_ok=True)
files = {"extract": ["rows.parquet"], "generate": ["answers.parquet"], "tokenize": ["tokens.parquet", "mask.parquet"]}
for name in [*files.get(stage, ["output.txt"]), "rejects.jsonl", "metrics.json"]:
    (folder / name).write_text('{"of": "%s%s"}' % (stage, dataset))
with open("seconds.txt", "a") as file:
    file.write(f"{time.process_time()}\\n")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """CPU seconds of one project: stages' own time taken off; `lock_share` is that of reading and writing dvc.lock."""

    datasets: int
    first: float
    no_op: float
    added: float
    lock_share: float
    lock_kb: float


def project(root: Path, datasets: int) -> None:
    """The project's machinery with `datasets` trivial datasets and trivial stages; compose and replan are real."""
    for folder in ("conf", "src"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", "data/hub.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    (root / "stages").mkdir()
    for path in (ROOT / "stages").glob("*.py"):
        real = path.stem in ("compose", "replan")
        (root / "stages" / path.name).write_text(path.read_text(encoding="utf-8") if real else STAGE, encoding="utf-8")
    for declaration in (root / "conf/dataset").glob("*.yaml"):
        declaration.unlink()
    config = root / "conf/config.yaml"
    text = config.read_text(encoding="utf-8").replace("experiment: quickstart", "experiment: tiny")
    config.write_text(text, encoding="utf-8")
    for i in range(datasets):
        declare(root, f"d{i:03}")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)


def declare(root: Path, name: str) -> None:
    """Add one dataset."""
    (root / f"data/{name}.jsonl").write_text('{"q": "a"}\n', encoding="utf-8")
    declaration = f"source: {{files: data/{name}.jsonl}}\nschema: {{prompt: q}}\nquota: 1\n"
    (root / f"conf/dataset/{name}.yaml").write_text(declaration, encoding="utf-8")


def cpu(root: Path, *command: str) -> float:
    """CPU seconds of a command and its children, without what its stages noted as their own."""
    noted = root / "seconds.txt"
    noted.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = sum(map(float, noted.read_text(encoding="utf-8").split())) if noted.exists() else 0.0
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - own


def lock_share(root: Path) -> float:
    """The share of a no-op's CPU time that goes into YAML, nearly all of it dvc.lock."""
    profile = root / "profile"
    cpu(root, sys.executable, "-m", "cProfile", "-o", str(profile), "-m", "dvc", "repro")
    statistics = pstats.Stats(str(profile))
    spent = [
        line[3]
        for (file, _, function), line in statistics.stats.items()  # type: ignore[attr-defined]
        if file.endswith("serialize/_yaml.py") and function in ("load_yaml", "parse_yaml", "_get_yaml", "_dump")
    ]
    return max(spent, default=0.0) / statistics.total_tt  # type: ignore[attr-defined]


def measured(datasets: int) -> Figures:
    """All figures for a number of datasets, in a project of its own that is removed."""
    dvc = (sys.executable, "-m", "dvc", "repro")
    with tempfile.TemporaryDirectory(prefix="draftmill-bench-") as name:
        root = Path(name)
        project(root, datasets)
        cpu(root, str(Path(sys.executable).with_name("draftmill")), "compose")
        first = cpu(root, *dvc)
        no_op = cpu(root, *dvc)
        share = lock_share(root)
        declare(root, "one_more")
        added = cpu(root, *dvc)
        size = (root / "dvc.lock").stat().st_size / 1000
    return Figures(datasets=datasets, first=first, no_op=no_op, added=added, lock_share=share, lock_kb=size)


def main() -> None:
    """Measure and print; exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="18 datasets only")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    arguments = parser.parse_args()
    found = [measured(size) for size in (SIZES[:1] if arguments.quick else SIZES)]
    if arguments.json:
        print(json.dumps([asdict(figures) for figures in found]))
    else:
        print("datasets  first s  no-op s  added s  YAML share  dvc.lock kB")
        for one in found:
            print(
                f"{one.datasets:8}  {one.first:7.1f}  {one.no_op:7.2f}  {one.added:7.1f}  "
                f"{one.lock_share:10.0%}  {one.lock_kb:11.0f}"
            )
    missed = list(misses(found))
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    sys.exit(bool(missed))


def misses(found: list[Figures]) -> list[str]:
    """The targets that were not met, in words."""
    small, large = found[0], found[-1]
    limits = [("first build", small.first, 40.0), ("no-op", small.no_op, 3.0), ("adding one dataset", small.added, 8.0)]
    missed = [
        f"{name} at {small.datasets} datasets: {value:.1f} CPU s, at most {limit}"
        for name, value, limit in limits
        if value > limit
    ]
    if large is not small:
        growths = [("first build", large.first / small.first, 15.0), ("no-op", large.no_op / small.no_op, 6.0)]
        missed += [
            f"{name} grew {growth:.1f} times, at most {limit}" for name, growth, limit in growths if growth > limit
        ]
    return missed


if __name__ == "__main__":
    main()
