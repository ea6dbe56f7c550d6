"""Hydra's composition of conf/, and its errors in words that name the file and the key."""

from __future__ import annotations

import re
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

from draftmill.compose.sources import CONF
from draftmill.errors import ConfigError, did_you_mean


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

    Raises ConfigError for whatever keeps the configuration from being composed.
    """
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
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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
        raise _explained(error, conf) from None
    finally:
        GlobalHydra.instance().hydra = outer


def _explained(error: Exception, conf: Path) -> ConfigError:
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None or chain[-1].__context__ is not None:
        chain.append(chain[-1].__cause__ or chain[-1].__context__ or chain[-1])
    for cause in reversed(chain):
        if isinstance(cause, ConfigError):
            return cause
        if isinstance(cause, yaml.MarkedYAMLError):
            return _yaml_error(cause, conf)
        if isinstance(cause, OmegaConfBaseException) and not _unreadable(conf):
            return ConfigError(str(cause.msg or cause).splitlines()[0], **_place(chain))
    if faulty := _unreadable(conf):
        return faulty
    missing = re.search(r"(?:Could not find|In '[^']*': Could not find) '([\w@/.]+)/([\w-]+)'", str(error))
    if missing:
        group, name = missing.group(1), missing.group(2)
        known = [path.stem for path in (conf / group).glob("*.yaml")]
        return ConfigError(f"there is no '{name}'", file=f"conf/{group}", found=name, fix=did_you_mean(name, known))
    return ConfigError(" ".join(str(error).split()), file="conf")


def _place(chain: list[BaseException]) -> dict[str, str | None]:
    """File and key of a faulty value, as far as any error of the chain knows them."""
    keys = (error.full_key for error in chain if isinstance(error, OmegaConfBaseException))
    key = next((str(key) for key in keys if key), None)
    parts = key.split(".", 2) if key else []
    if len(parts) == 3 and parts[0] == "datasets":
        return {"file": f"conf/dataset/{parts[1]}.yaml", "key": parts[2]}
    return {"file": "conf", "key": key}


def _unreadable(conf: Path) -> ConfigError | None:
    """The first file below conf/ that is no text, or no map: Hydra does not name it."""
    for path in sorted(conf.rglob("*.yaml")):
        name = conf.absolute().name / path.relative_to(conf)
        try:
            text = path.read_bytes().decode("utf-8")
            node = yaml.compose(text)
        except UnicodeDecodeError as error:
            return ConfigError(f"is not UTF-8: {error.reason} at byte {error.start}", file=name, fix="save it as UTF-8")
        except yaml.reader.ReaderError as error:
            return ConfigError(f"holds a character that YAML forbids: {error.reason}", file=name)
        except RecursionError:
            return ConfigError("is nested too deeply", file=name)
        except yaml.YAMLError:
            continue
        if isinstance(node, yaml.SequenceNode):
            return ConfigError("must be a map of keys, not a list", file=name, fix="write  key: value  lines")
    return None


def _yaml_error(error: yaml.MarkedYAMLError, conf: Path) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return ConfigError(f"not valid YAML: {error.problem}", file="conf")
    path = Path(mark.name)
    name = path.relative_to(conf.absolute().parent) if path.is_absolute() else path
    return ConfigError(f"not valid YAML at line {mark.line + 1}: {error.problem}", file=name)
