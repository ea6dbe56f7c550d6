"""What Hydra needs to compose a draftmill project; found by Hydra once the package is installed.

Hydra has no "every option of a group" in a defaults list. This plugin lists conf/dataset/*.yaml and
stores two nodes that conf/config.yaml names: `dataset/all`, and `build_info`. It registers the
resolvers too. All of it works the same for `hydra.main`, `compose()`, and DVC's own composition.
"""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin

from draftmill.compose.resolvers import register
from draftmill.compose.sources import conf_digest, dataset_names


class DraftmillSearchPath(SearchPathPlugin):
    """Stores `dataset/all` and `build_info` for the main configuration directory, if it has datasets."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Leave the search path as it is; look where it points and describe what is there."""
        for element in search_path.get_path():
            if element.provider == "main" and element.path is not None:
                conf = Path(element.path.removeprefix("file://"))
                if (conf / "dataset").is_dir():
                    store(conf)


def store(conf: Path) -> None:
    """Put the two nodes for the datasets of `conf` into Hydra's ConfigStore, and register the resolvers."""
    register(root=conf.resolve().parent)
    names = dataset_names(conf)
    defaults = [entry for name in names for entry in (f"/dataset_defaults@{name}", f"{name}@{name}")]
    nodes = ConfigStore.instance()
    nodes.store(group="dataset", name="all", node={"defaults": defaults}, provider="draftmill")
    build_info = {
        "conf_digest": conf_digest(conf),
        "dataset_names": "${draftmill.enabled:${datasets}}",
        "inputs": "${draftmill.inputs:${datasets}}",
        "answered": "${draftmill.answered:${datasets}}",
        "blend_members": "${draftmill.blend_members:${blend},${datasets}}",
        # DVC's run-cache leaves keys named `size` out of what tells two runs apart, those of parameters too: without
        # the digest, a blend of another size would be served with the rows of the earlier one.
        "blend_digest": "${draftmill.digest:${blend}}",
    }
    nodes.store(name="build_info", node=build_info, package="_global_", provider="draftmill")
