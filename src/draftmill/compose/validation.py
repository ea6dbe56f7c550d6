"""Everything a composed configuration says is checked before anything runs, by the dataclass of whoever reads it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftmill.compose.changes import DERIVED
from draftmill.compose.composition import Composition
from draftmill.config import build
from draftmill.errors import ConfigError, DataError, did_you_mean, nearest

# section of params.yaml: the module and dataclass that read it.
SECTIONS = {
    "target": ("draftmill.target", "Target"),
    "engine": ("draftmill.generate", "Engine"),
    "sampling": ("draftmill.generate", "Sampling"),
    "states": ("draftmill.hidden_states", "States"),
    "blend": ("draftmill.blend", "Blend"),
    "drafter": ("draftmill.drafters", "Drafter"),
    "evaluate": ("draftmill.evaluate", "Evaluate"),
    "run.generate": ("draftmill.generate", "GenerateRun"),
    "run.hidden_states": ("draftmill.hidden_states", "StatesRun"),
    "run.train": ("draftmill.train", "TrainRun"),
    "run.evaluate": ("draftmill.evaluate", "EvaluateRun"),
    "run.plan": ("draftmill.plan", "Rates"),
}


# Keys that no dataclass reads.
_SCALARS = ("seed", "source_mode", "quota_cap")
_RUN = ("device", "threads", "workers")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def validate(composition: Composition) -> None:
    """Check every section and every dataset; raises the first ConfigError, with the file and the key to edit."""
    _check_keys(composition)
    _check_run(composition)
    _check_scalars(composition.values)
    for name, (module, cls) in SECTIONS.items():
        value: Any = composition.values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        group = name.split(".")[0]
        key = name if group == "run" else ""
        build(getattr(importlib.import_module(module), cls), value, file=composition.file(group), key=key)
    _check_datasets(composition.values)
    _check_blend(composition)


def _check_keys(composition: Composition) -> None:
    """A misspelled key of an experiment, of conf/config.yaml or of `run` would change nothing, silently."""
    names = [name.split(".") for name in SECTIONS]
    writable = {parts[0] for parts in names} | set(_SCALARS) | {"datasets"}
    for key in composition.values:
        if key not in writable and key not in DERIVED:
            fix = did_you_mean(str(key), writable)
            raise ConfigError(f"unknown key '{key}'", file=_holder(composition, str(key)), key=str(key), fix=fix)
    run = composition.values.get("run")
    known = {parts[1] for parts in names if parts[0] == "run"} | set(_RUN)
    for key in run if isinstance(run, Mapping) else ():
        if key not in known:
            fix = did_you_mean(str(key), known)
            raise ConfigError(f"unknown key '{key}'", file=composition.file("run"), key=f"run.{key}", fix=fix)


def _check_run(composition: Composition) -> None:
    run = composition.values.get("run") or {}
    device = run.get("device", "auto")
    if not (isinstance(device, str) and _DEVICE.fullmatch(device)):
        fix = did_you_mean(str(device), ("auto", "cpu", "cuda", "cuda:1", "mps"))
        raise ConfigError("is no device", file=composition.file("run"), key="run.device", found=str(device), fix=fix)
    for key in ("threads", "workers"):
        value = run.get(key, 0)
        if type(value) is not int or value < 0:
            message = "must be a whole number from 0 on"
            raise ConfigError(message, file=composition.file("run"), key=f"run.{key}", found=str(value))


def _holder(composition: Composition, key: str) -> str:
    """The file that a top-level key was most likely written in."""
    experiment = f"conf/experiment/{composition.choices.get('experiment')}.yaml"
    line = re.compile(rf"^[\"']?{re.escape(key)}[\"']?\s*:", re.MULTILINE)
    for file in (experiment, "conf/local/machine.yaml"):
        if Path(file).is_file() and line.search(Path(file).read_text(encoding="utf-8")):
            return file
    return "conf/config.yaml"


def _check_scalars(values: Mapping[str, Any]) -> None:
    file = "conf/config.yaml"
    mode, seed, cap = values.get("source_mode"), values.get("seed"), values.get("quota_cap")
    if mode not in ("real", "sample"):
        fix = did_you_mean(str(mode), ("real", "sample"))
        raise ConfigError("must be real or sample", file=file, key="source_mode", found=str(mode), fix=fix)
    if type(seed) is not int:
        raise ConfigError("must be a whole number", file=file, key="seed", found=str(seed))
    if cap is not None and (type(cap) is not int or cap < 1):
        raise ConfigError("must be a whole number from 1 on, or null", file=file, key="quota_cap", found=str(cap))


def _check_datasets(values: Mapping[str, Any]) -> None:
    from draftmill.extract import validate as validate_dataset

    datasets = values.get("datasets") or {}
    for name, declaration in datasets.items():
        validate_dataset(name, declaration, f"conf/dataset/{name}.yaml")
        if name in values["inputs"]:
            _check_input(name, Path(values["inputs"][name]))
            _check_sources(name, declaration, values["source_mode"])
    if not values.get("answered"):
        raise ConfigError(
            "no dataset takes part in the training",
            file="conf/dataset",
            found=f"{len(datasets)} declared, none with  enabled: true  and  role: train",
        )


def _check_blend(composition: Composition) -> None:
    from draftmill.blend import FILE, Blend, members

    values, file = composition.values, composition.file("blend")
    blend = build(Blend, values["blend"], file=file, key="")
    try:
        members(blend, {name: values["datasets"][name] for name in values["dataset_names"]})
    except ConfigError as error:
        error.file = file if error.file == FILE else error.file
        raise


def _check_sources(name: str, declaration: Mapping[str, Any], mode: str) -> None:
    """Each path, glob or folder must mean a file now; extract would say it an hour later."""
    from draftmill.extract.readers.files import resolve
    from draftmill.extract.source import Source, listed

    source = build(Source, declaration["source"], file=f"conf/dataset/{name}.yaml", key="source")
    try:
        resolve(listed(source.pick("sample" if mode == "sample" else "real").files))
    except DataError as error:
        message, found = f"{error.message}", error.file
        raise ConfigError(message, file=f"conf/dataset/{name}.yaml", key="source", found=found, fix=error.fix) from None


def _check_input(name: str, path: Path) -> None:
    """DVC would say that it cannot find the file, but neither where that stands nor what is there instead."""
    try:
        if path.exists():
            return
    except OSError as error:
        found = f"{str(path)[:80]}…"
        raise ConfigError(
            f"cannot be a path: {error.strerror}", file=f"conf/dataset/{name}.yaml", key="source", found=found
        ) from None
    if path.is_symlink():
        raise ConfigError(
            "is a link that leads nowhere",
            file=f"conf/dataset/{name}.yaml",
            key="source",
            found=str(path),
            fix="point it at the data, or name the data itself",
        )
    there = [str(other) for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(str(path), there)
    fix = f"did you mean {close}?" if close else "paths are relative to the project's folder"
    raise ConfigError(
        "there is no such file or folder", file=f"conf/dataset/{name}.yaml", key="source", found=str(path), fix=fix
    )
