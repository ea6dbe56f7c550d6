"""Which experiment a plain build builds: the last line of the defaults in conf/config.yaml."""

from __future__ import annotations

import re
from pathlib import Path

from draftmill.compose.sources import CONF
from draftmill.errors import ConfigError, did_you_mean
from draftmill.files import write_text

_LINE = re.compile(r"^(\s*- experiment:\s*)([\w./-]+)", re.MULTILINE)


def names(conf: Path = CONF) -> list[str]:
    """The experiments there are, sorted."""
    return sorted(path.stem for path in (conf / "experiment").glob("*.yaml"))


def chosen(conf: Path = CONF) -> str:
    """The experiment that conf/config.yaml names."""
    return _find(conf).group(2)


def use(name: str, conf: Path = CONF) -> None:
    """Name another experiment in conf/config.yaml; raises ConfigError if there is none of that name."""
    if name not in names(conf):
        fix = did_you_mean(name, names(conf))
        raise ConfigError(f"there is no experiment '{name}'", file=conf / "experiment", fix=fix)
    line = _find(conf)
    write_text(conf / "config.yaml", f"{line.string[: line.start(2)]}{name}{line.string[line.end(2) :]}")


def _find(conf: Path) -> re.Match[str]:
    file = conf / "config.yaml"
    if not file.is_file():
        raise ConfigError("not there", file=file, fix="run this in the folder of a draftmill project")
    found = _LINE.search(file.read_text(encoding="utf-8"))
    if found is None:
        raise ConfigError(
            "has no line  - experiment: NAME", file=file, key="defaults", fix="add it as the last default"
        )
    return found
