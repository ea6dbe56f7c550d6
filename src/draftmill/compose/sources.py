"""What a composition is made from: the files of conf/, their digest, and the names of the datasets.

Everything here is cheap and imports nothing heavy: it runs at the start of every build.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from draftmill import __version__
from draftmill.errors import ConfigError

CONF = Path("conf")
NAME = re.compile(r"[a-z0-9_]+")


def conf_digest(conf: Path) -> str:
    """Hex digest over the names and bytes of every file below `conf`, and the version of draftmill."""
    summed = hashlib.sha256(__version__.encode())
    for path in sorted(path for path in conf.rglob("*") if path.is_file()):
        content = path.read_bytes()
        summed.update(f"\0{path.relative_to(conf).as_posix()}\0{len(content)}\0".encode())
        summed.update(content)
    return summed.hexdigest()[:32]


def dataset_names(conf: Path) -> list[str]:
    """The sorted names of conf/dataset/*.yaml; raises ConfigError for one that is not `[a-z0-9_]+`.

    Names enter commands and paths, so they are checked where they are found.
    """
    paths = sorted((conf / "dataset").glob("*.y*ml"))
    for path in paths:
        if not NAME.fullmatch(path.stem) or path.suffix != ".yaml" or path.stem == "all":
            fix = re.sub(r"[^a-z0-9_]+", "_", path.stem.lower()).strip("_") or "dataset"
            fix = f"my_{fix}" if fix == "all" else fix
            raise ConfigError(
                "a dataset's name is made of a-z, 0-9 and _ (and is not 'all')",
                file=conf.name / path.relative_to(conf),
                found=path.name,
                fix=f"rename the file to {fix}.yaml",
            )
    for path in sorted((conf / "dataset").glob("*/**/*.yaml")):
        raise ConfigError(
            "a dataset's file stands in conf/dataset itself, not in a folder there",
            file=conf.name / path.relative_to(conf),
            fix=f"move it to {conf.name}/dataset/{path.name}",
        )
    return [path.stem for path in paths]
