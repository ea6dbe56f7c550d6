"""Hydra's composition of conf/, and its errors in words that name the file and the key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from draftmill.compose.explaining import explained, of_override
from draftmill.compose.sources import CONF
from draftmill.errors import ConfigError
from draftmill.files import parse_yaml


@dataclass(frozen=True, kw_only=True, slots=True)
class Composition:
    """One composed configuration: params.yaml's text, the same as plain data, and the choice made in each group."""

    text: str
    values: dict[str, Any]
    choices: dict[str, str]

    def file(self, section: str) -> str:
        """The file a person edits for a section: `conf/target/tiny.yaml` for `target`."""
        return f"conf/{section}/{self.choices[section]}.yaml" if section in self.choices else "conf/config.yaml"


def composed(overrides: Sequence[str] = (), conf: Path = CONF) -> Composition:
    """Compose conf/config.yaml; the text is what DVC's own dump would write, byte for byte.

    Raises ConfigError for whatever keeps the configuration from being composed, UsageError for a wrong override.
    """
    try:
        return _composed(overrides, conf)
    except ConfigError:
        if overrides and (wrong := of_override(overrides, _composed((), conf).values, conf)):
            raise wrong from None
        raise


def _composed(overrides: Sequence[str], conf: Path) -> Composition:
    with _errors(conf), initialize_config_dir(str(conf.absolute()), version_base=None):
        config = compose("config", overrides=list(overrides), return_hydra_config=True)
        choices = {group: str(name) for group, name in config.hydra.runtime.choices.items() if "/" not in group}
        resolved = _without_hydra(config)
        OmegaConf.resolve(resolved)
        text = OmegaConf.to_yaml(resolved)
    _require_complete(text)
    try:
        values = parse(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        found = text.splitlines()[mark.line].strip() if mark else None
        raise ConfigError(f"a value cannot be written as YAML: {error.problem}", file="conf", found=found) from None
    return Composition(text=text, values=values, choices=choices)


def parse(text: str) -> dict[str, Any]:
    """The plain data of a composed YAML text."""
    loaded: dict[str, Any] = parse_yaml(text)
    return loaded


def _without_hydra(config: DictConfig) -> DictConfig:
    OmegaConf.set_struct(config, False)
    OmegaConf.set_readonly(config, False)
    config.pop("hydra")
    return config


def _require_complete(text: str) -> None:
    """A `???` or a `${` that is left would reach a shell as nothing."""
    for mark, meaning in (("???", "has no value yet"), ("${", "is not resolved")):
        line = next((line for line in text.splitlines() if mark in line), None)
        if line is not None:
            raise ConfigError(f"a value {meaning}", file="conf", found=line.strip(), fix="give it a value")


@contextmanager
def _errors(conf: Path) -> Iterator[None]:
    """Turn the errors of YAML, OmegaConf and Hydra into ConfigErrors."""
    if not (conf / "config.yaml").is_file():
        raise ConfigError("not there", file=conf / "config.yaml", fix="run this in the folder of a draftmill project")
    outer = GlobalHydra.instance().hydra  # of a sweep's program, which composes its jobs from inside
    GlobalHydra.instance().clear()
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise explained(error, conf) from None
    finally:
        GlobalHydra.instance().hydra = outer
