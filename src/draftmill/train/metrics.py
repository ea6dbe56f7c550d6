"""Training metrics as files, by DVCLive: <folder>/metrics.json and <folder>/plots/metrics/<name>.tsv.

DVCLive would open, and where there is none even make, a DVC repository, save an experiment and report to a
server. Inside a build all of that belongs to the build; the methods that do it are emptied here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dvclive import Live


class FilesOnly(Live):
    """DVCLive without its dealings with Git, DVC and servers."""

    def _init_dvc(self) -> None:
        pass

    def _init_studio(self) -> None:
        self._studio_events_to_skip |= {"start", "data", "done"}


class Metrics:
    """Lines of history in, DVCLive's files out; TensorBoard events too if wanted."""

    def __init__(self, folder: Path, tensorboard: bool = False) -> None:
        self._live = FilesOnly(dir=str(folder), save_dvc_exp=False, dvcyaml=None)
        self._board = self._open_board(folder) if tensorboard else None

    @staticmethod
    def _open_board(folder: Path) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(folder / "tensorboard"))

    def record(self, line: dict[str, Any]) -> None:
        """One line: `step`, and figures by name."""
        self._live.step = line["step"]
        for name, value in sorted(line.items()):  # as it comes back from a checkpoint
            if name != "step":
                self._live.log_metric(name, value)
                if self._board is not None:
                    self._board.add_scalar(name, value, line["step"])
        self._live.make_summary()

    def close(self, **summary: float) -> None:
        """Add final figures that have no curve."""
        for name, value in summary.items():
            self._live.log_metric(name, value, plot=False)
        self._live.make_summary()
        if self._board is not None:
            self._board.close()
