"""What the machinery itself costs: CPU seconds of dvc, compose and process starts, for 18, 50 and 100 datasets.

The project's own dvc.yaml with stage programs that copy a few bytes. Each notes its own CPU time, which is taken off:
what is left is the price of declaring work instead of calling it.

    python benchmarks/build.py [--quick] [--json]
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Without this folder: its tokenize.py would stand for the module of the standard library that others import.
sys.path[:] = [str(HERE / "common"), *(folder for folder in sys.path if Path(folder).resolve() != HERE)]

import os
import pstats
import resource
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

from figures import Figure, at_most, main

ROOT = Path(__file__).parent.parent
SIZES, QUICK = (18, 50, 100), 6
# CPU seconds at the smallest of the sizes, and growth from there to the largest.
FIRST_LIMIT, NO_OP_LIMIT, ADDED_LIMIT, FIRST_GROWTH, NO_OP_GROWTH = 40, 3, 8, 15, 6

# Writes every output its stage declares; the bytes depend on nothing, so that only the machinery is timed.
STAGE = """\
import pathlib, sys, time
stage, dataset = pathlib.Path(sys.argv[0]).stem, sys.argv[1] if len(sys.argv) > 1 else ""
folder = pathlib.Path("build", stage, dataset)
folder.mkdir(parents=True, exist_ok=True)
files = {
    "extract": ["rows.parquet"], "generate": ["answers.parquet"], "tokenize": ["tokens.parquet", "mask.parquet"],
    "blend": ["train.parquet", "heldout.parquet"],
}
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
    for folder in ("conf", "pipeline", "src"):
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
        size = sum(path.stat().st_size for path in root.rglob("dvc.lock")) / 1000
    return Figures(datasets=datasets, first=first, no_op=no_op, added=added, lock_share=share, lock_kb=size)


def measure(quick: bool) -> list[Figure]:
    """All figures; with --quick the targets for 18 datasets are shared out over fewer."""
    sizes = (QUICK,) if quick else SIZES
    print("datasets  first s  no-op s  added s  YAML share  dvc.lock kB")
    found = []
    for size in sizes:
        one = measured(size)
        found.append(one)
        print(
            f"{one.datasets:8}  {one.first:7.1f}  {one.no_op:7.2f}  {one.added:7.1f}  "
            f"{one.lock_share:10.0%}  {one.lock_kb:11.0f}"
        )
    small, large = found[0], found[-1]
    figures = [
        at_most("first_build_cpu_s", small.first, FIRST_LIMIT * small.datasets / SIZES[0]),
        at_most("no_op_cpu_s", small.no_op, NO_OP_LIMIT),
        at_most("adding_one_cpu_s", small.added, ADDED_LIMIT),
    ]
    if large is not small:
        figures += [
            at_most("first_build_growth", large.first / small.first, FIRST_GROWTH),
            at_most("no_op_growth", large.no_op / small.no_op, NO_OP_GROWTH),
        ]
    return figures


if __name__ == "__main__":
    main(__doc__, measure, f"{QUICK} datasets only")
