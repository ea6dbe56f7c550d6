"""Everything a composed configuration says is checked before anything runs, by the dataclass of whoever reads it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from draftmill.compose.composition import Composition
from draftmill.config import build
from draftmill.errors import ConfigError, did_you_mean

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


def validate(composition: Composition) -> None:
    """Check every section and every dataset; raises the first ConfigError, with the file and the key to edit."""
    _check_scalars(composition.values)
    for name, (module, cls) in SECTIONS.items():
        value: Any = composition.values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        group = name.split(".")[0]
        key = name if group == "run" else ""
        if (found := getattr(_imported(module), cls, None)) is not None:
            build(found, value, file=composition.file(group), key=key)
    _check_datasets(composition.values)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("draftmill"):
            raise
        return None


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
    validate_dataset = getattr(_imported("draftmill.extract"), "validate", lambda *_: None)
    datasets = values.get("datasets") or {}
    for name, declaration in datasets.items():
        validate_dataset(name, declaration, f"conf/dataset/{name}.yaml")
    if not values.get("answered"):
        raise ConfigError(
            "no dataset takes part in the training",
            file="conf/dataset",
            found=f"{len(datasets)} declared, none with  enabled: true  and  role: train",
        )
