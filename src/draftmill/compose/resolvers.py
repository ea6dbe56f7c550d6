"""OmegaConf resolvers for what a dataset's settings imply, so that DVC's own composition gives the same bytes.

| resolver | gives |
|---|---|
| draftmill.input | the one local path a dataset is read from: file, folder, or the fixed part of a glob |
| draftmill.answer | `regenerate` or `dataset`: `native_to` decided for the target's name |
| draftmill.keep | the declared keep rule, or the default that `answer` and `prompt` imply |
| draftmill.flag | the path of `mask: {flag: path}`, which extract must carry along; else null |
| draftmill.enabled | the sorted names of the datasets that take part |
| draftmill.inputs, draftmill.answered | {name: input} of those, and of those that are trained on |
| draftmill.blend_members | which datasets each rule of the blend takes: a changed tag matters only if it changes this |
| draftmill.digest | a digest of a whole section |
| draftmill.file_digest | a digest of a file's bytes, so that an edited template is a changed parameter |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import wraps
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import OmegaConf

from draftmill.config import build
from draftmill.errors import ConfigError
from draftmill.files import digest

# A dataset that is read from the Hub has no local path: it depends on this file, which never
# changes, and its pinned revision is the parameter.
HUB_INPUT = "data/hub.txt"


def plain(value: Any) -> Any:
    """`value` without OmegaConf's containers, interpolations resolved."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def fixed_part(pattern: str) -> str:
    """The longest leading path of a glob that has no wildcard: `a/b/*.jsonl` gives `a/b`."""
    parts = PurePosixPath(pattern).parts
    kept = next((parts[:i] for i, part in enumerate(parts) if any(c in part for c in "*?[")), parts)
    return str(PurePosixPath(*kept)) if kept else "."


def common_part(paths: list[str]) -> str:
    """The one path that covers all of `paths`: itself if there is one, else their common folder."""
    fixed = [fixed_part(path) for path in paths]
    if len(set(fixed)) == 1:
        return fixed[0]
    levels = zip(*(PurePosixPath(path).parts for path in fixed), strict=False)
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels)]
    return str(PurePosixPath(*shared)) if shared else "."


def input_path(source: Any, source_mode: str) -> str:
    """The local path that DVC watches for a dataset; `source` is its declaration's map."""
    source = plain(source)
    if not isinstance(source, Mapping):
        return HUB_INPUT  # reported by the validation, with the dataset's name
    files = source.get("sample") if source_mode == "sample" and source.get("sample") else source.get("files")
    if not files:
        return HUB_INPUT
    return common_part([str(path) for path in files] if isinstance(files, list) else [str(files)])


def resolve_answer(answer: Any, target_name: str) -> Any:
    """`regenerate` or `dataset`; `{native_to: [globs]}` means `dataset` where a glob matches the target's name."""
    answer = plain(answer)
    if not isinstance(answer, Mapping) or "native_to" not in answer:
        return answer
    globs = answer["native_to"]
    globs = globs if isinstance(globs, list) else [globs]
    name = str(target_name).lower()
    return "dataset" if any(fnmatchcase(name, str(pattern).lower()) for pattern in globs) else "regenerate"


def resolve_keep(schema: Any, answer: Any) -> Any:
    """The declared keep rule; by default `full` for recorded answers, `first_user` for prompts, else `to_last_user`."""
    schema = plain(schema)
    schema = schema if isinstance(schema, Mapping) else {}
    if schema.get("keep") is not None:
        return schema["keep"]
    if answer == "dataset":
        return "full"
    return "first_user" if schema.get("prompt") else "to_last_user"


def resolve_flag(mask: Any) -> str | None:
    """The path in `mask: {flag: path}`, or None for any other mask."""
    mask = plain(mask)
    return mask.get("flag") if isinstance(mask, Mapping) else None


def enabled(datasets: Any) -> list[str]:
    """The sorted names of the datasets with `enabled: true`."""
    return sorted(name for name in datasets if datasets[name].get("enabled"))


def inputs(datasets: Any) -> dict[str, str]:
    """{name: input} of every enabled dataset."""
    return {name: datasets[name].input for name in enabled(datasets)}


def answered(datasets: Any) -> dict[str, str]:
    """{name: input} of every enabled dataset that is trained on (evaluation sets are only extracted)."""
    return {name: datasets[name].input for name in enabled(datasets) if datasets[name].role == "train"}


def blend_members(blend: Any, datasets: Any) -> dict[str, Any]:
    """The datasets that each rule, priority and decontamination of the blend names; nothing for a faulty blend.

    The validation reports that, with the file that was chosen, which is not known here.
    """
    from draftmill.blend import Blend, members

    try:
        rules = build(Blend, plain(blend), file="conf/blend", key="")
        return asdict(members(rules, {name: plain(datasets[name]) for name in enabled(datasets)}))
    except ConfigError:
        return {}


def _refuse_environment(name: str, *_: Any) -> None:
    """What a variable holds, a secret perhaps, would stand in params.yaml, which is committed."""
    raise ConfigError(
        f"'${{oc.env:{name}}}' would write an environment variable into params.yaml, which is committed",
        file="conf",
        fix="write the value, or the variable's name where a setting ends in _env; a machine's own go to conf/local",
    )


def register(root: Path) -> None:
    """Register the resolvers; relative files are looked up below `root`, the project's folder."""

    def file_digest(path: str | None) -> str | None:
        if path is None:
            return None
        file = root / path
        if not file.is_file():
            raise ConfigError("no such file", file=path, fix="paths are relative to the project's folder")
        if not file.resolve().is_relative_to(root / "conf"):
            raise ConfigError("lies outside conf/, where a change would go unnoticed", file=path, fix="move it there")
        return hashlib.sha256(file.read_bytes()).hexdigest()[:32]

    OmegaConf.register_new_resolver("oc.env", _refuse_environment, replace=True)
    table: dict[str, Callable[..., Any]] = {
        "input": input_path,
        "answer": resolve_answer,
        "keep": resolve_keep,
        "flag": resolve_flag,
        "enabled": enabled,
        "inputs": inputs,
        "answered": answered,
        "blend_members": blend_members,
        "digest": lambda section: digest(plain(section)),
        "file_digest": file_digest,
    }
    for name, function in table.items():
        OmegaConf.register_new_resolver(f"draftmill.{name}", _as_node(function), replace=True)


def _as_node(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with a dict or list it returns made a node, which OmegaConf.resolve needs."""

    @wraps(function)
    def wrapped(*arguments: Any) -> Any:
        value = function(*arguments)
        return OmegaConf.create(value) if isinstance(value, dict | list) else value

    return wrapped
