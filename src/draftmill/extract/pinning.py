"""Write a revision into a declaration, leaving every other character of the file as it is."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from draftmill.errors import ConfigError
from draftmill.files import write_text

# What YAML would read as a number rather than as a text.
_NUMBER_ALIKE = re.compile(r"[0-9]+(?:[eE][0-9]+)?")


def pinned(text: str, revision: str) -> str:
    """The declaration `text` with `source.revision` set, comments and layout kept.

    Raises ValueError where the text has no `source.hub`.
    """
    root = yaml.compose(text)
    source = _child(root, "source")
    hub, now = _child(source, "hub"), _child(source, "revision")
    if not isinstance(source, yaml.MappingNode) or not isinstance(hub, yaml.ScalarNode):
        raise ValueError("has no `source.hub`, so there is no revision to write")
    written = f'"{revision}"' if _NUMBER_ALIKE.fullmatch(revision) else revision
    if now is not None:
        return text[: now.start_mark.index] + written + text[now.end_mark.index :]
    end = hub.end_mark.index
    if source.flow_style:
        return f"{text[:end]}, revision: {written}{text[end:]}"
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * source.start_mark.column
    return f"{text[:line_end]}\n{indent}revision: {written}{text[line_end:]}"


def pin(file: Path, revision: str) -> None:
    """Set `source.revision` in a declaration's file. Raises ConfigError where that is not possible."""
    text = file.read_text(encoding="utf-8")
    try:
        changed = pinned(text, revision)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(str(error), file=file) from None
    write_text(file, changed)


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
