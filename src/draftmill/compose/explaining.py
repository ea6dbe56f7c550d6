"""What Hydra, OmegaConf and YAML say of a faulty configuration, in words that name the file, the key and the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import grammar_parser
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from draftmill.errors import ConfigError, DraftmillError, UsageError, did_you_mean


def explained(error: Exception, conf: Path) -> ConfigError:
    """The ConfigError that says what an error of composing means."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None or chain[-1].__context__ is not None:
        chain.append(chain[-1].__cause__ or chain[-1].__context__ or chain[-1])
    for cause in reversed(chain):
        if isinstance(cause, ConfigError):
            return cause
        if isinstance(cause, yaml.MarkedYAMLError):
            return _yaml_error(cause, conf)
        if isinstance(cause, OmegaConfBaseException) and not _unreadable(conf):
            if isinstance(cause, GrammarParseError) and (broken := _broken_reference(conf)):
                return broken
            return ConfigError(str(cause.msg or cause).splitlines()[0], **_place(chain))
    if faulty := _unreadable(conf):
        return faulty
    return _missing(str(error), conf) or ConfigError(" ".join(str(error).split()), file="conf")


def of_override(overrides: Sequence[str], values: Mapping[str, Any], conf: Path) -> DraftmillError | None:
    """The first override of a command line that is none, or that names nothing in the configuration without it."""
    example = "key=value, such as experiment=tiny or datasets.swe_agent.quota=500; a new key is  +key=value"
    for text in overrides:
        try:
            (override,) = OverridesParser.create().parse_overrides([text])
            key = override.key_or_group
        except HydraException:
            return UsageError("is no override", key=text, fix=example)
        if not key:
            return UsageError("is no override", key=text, fix=example)
        if override.is_sweep_override():
            return UsageError("gives several values", key=text, fix=f"one value; [a, b] is a list: {key}=[1,2]")
        if (conf / key).is_dir() or override.is_add():
            continue
        known: Any = values
        for part in key.split("."):
            if not isinstance(known, Mapping) or part not in known:
                fix = did_you_mean(part, known) if isinstance(known, Mapping) else "it has no keys of its own"
                return UsageError(f"there is no '{part}' in the configuration", key=key, found=text, fix=fix)
            known = known[part]
    return None


def _missing(text: str, conf: Path) -> ConfigError | None:
    """A file that a defaults list or an override names, and that is not there."""
    found = re.search(r"(?:In '([^']*)': )?Could not (?:find|load) '([\w@/.]+)/([\w-]+)'", text)
    if not found:
        return None
    holder, group, name = found.groups()
    fix = did_you_mean(name, [path.stem for path in (conf / group).glob("*.yaml")])
    if not holder or holder == "config":
        return ConfigError(f"there is no '{name}'", file=f"conf/{group}", found=name, fix=fix)
    message = f"there is no '{name}' in conf/{group}"
    return ConfigError(message, file=f"conf/{holder}.yaml", key="defaults", found=name, fix=fix)


def _place(chain: list[BaseException]) -> dict[str, str | None]:
    """File and key of a faulty value, as far as any error of the chain knows them."""
    keys = (error.full_key for error in chain if isinstance(error, OmegaConfBaseException))
    key = next((str(key) for key in keys if key), None)
    parts = key.split(".", 2) if key else []
    if len(parts) == 3 and parts[0] == "datasets":
        return {"file": f"conf/dataset/{parts[1]}.yaml", "key": parts[2]}
    return {"file": "conf", "key": key}


def _broken_reference(conf: Path) -> ConfigError | None:
    """The first value below conf/ with a `${` that OmegaConf cannot parse: its error names no file."""
    for path in sorted(conf.rglob("*.yaml")):
        for key, node in _texts(yaml.compose(path.read_text(encoding="utf-8"))):
            try:
                grammar_parser.parse(node.value)
            except GrammarParseError:
                return ConfigError(
                    f"'${{' at line {node.start_mark.line + 1} opens a reference that is none",
                    file=conf.absolute().name / path.relative_to(conf),
                    key=key,
                    found=node.value,
                    fix="${other.key} stands for another value; a text that has '${' itself is written '\\${'",
                )
    return None


def _texts(node: yaml.Node | None, key: str = "") -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Dotted key and node of every text with `${`."""
    if isinstance(node, yaml.ScalarNode) and "${" in node.value:
        yield key, node
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _texts(value, f"{key}.{name.value}".lstrip("."))
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            yield from _texts(value, f"{key}[{place}]")


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
