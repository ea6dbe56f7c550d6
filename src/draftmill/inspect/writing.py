"""The YAML of a proposed declaration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from draftmill.errors import ConfigError, UsageError
from draftmill.files import write_text

HEAD = "# yaml-language-server: $schema=../schema/dataset.schema.json\n"
_NOT_YAML = yaml.reader.Reader.NON_PRINTABLE  # labels and names of parts come from the data
NAME = re.compile(r"[a-z0-9_]+")


class _Dumper(yaml.SafeDumper):
    """Texts with line breaks in double quotes, as a person writes them."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if "\n" in value else None)


_Dumper.add_representer(str, _text)


def yaml_text(declaration: Mapping[str, Any], notes: Iterable[str] = ()) -> str:
    """The declaration as a file, notes as comments."""
    body = yaml.dump(
        dict(declaration), Dumper=_Dumper, default_flow_style=None, sort_keys=False, allow_unicode=True, width=120
    )
    return HEAD + "".join(f"# {_NOT_YAML.sub('?', ' '.join(note.split()))}\n" for note in notes) + body


def write_declaration(name: str, text: str, folder: Path = Path("conf/dataset")) -> Path:
    """Save a declaration as conf/dataset/NAME.yaml; never over an existing one."""
    if not NAME.fullmatch(name):
        raise UsageError(f"'{name}' is no name for a dataset", fix="use small letters, digits and _ only")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder} here", fix="run this in the root of the project")
    path = folder / f"{name}.yaml"
    if path.exists():
        raise ConfigError("is there already", file=path, fix="choose another name, or remove the file first")
    write_text(path, text)
    return path
