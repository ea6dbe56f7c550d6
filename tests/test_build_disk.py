"""A full disk and a cache that is read-only: one clear message, and the next `dvc repro` completes."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_build_interrupted import assert_equal_builds
from tinybuild import copied, new

from draftmill.errors import BuildError, guard, of_machine
from draftmill.files import write_text


def mounted(folder: Path, size: str) -> bool:
    """Whether a file system of its own could be mounted there: only root may."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    folder = tmp_path / "disk"
    if not mounted(folder, "64m"):
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, left: int) -> None:
    """Leave `left` bytes free."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - left))


def test_every_library_says_the_disk_is_full_in_the_same_words(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, how much was free, what to do, exit code 1; nothing half-written stays."""
    fill(disk, 20_000)
    with pytest.raises(BuildError, match="no space left on the disk") as caught:
        write_text(disk / "large.txt", "x" * 1_000_000)
    assert caught.value.file == str(disk / "large.txt") and "MB free" in str(caught.value.found)
    assert [path.name for path in disk.iterdir()] == ["filler"]

    def tensors() -> None:
        save_file({"a": np.zeros(100_000)}, disk / "a.safetensors")

    def rows() -> None:
        with closing(sqlite3.connect(disk / "a.sqlite")) as store:
            store.execute("CREATE TABLE a (b)")
            store.execute("INSERT INTO a VALUES (?)", (bytes(1_000_000),))
            store.commit()

    for program in (tensors, rows):
        with pytest.raises(SystemExit) as ended:
            guard(program)
        said = capsys.readouterr().err
        assert ended.value.code == 1 and "error: no space left on the disk\n  found: " in said, said
        assert "Traceback" not in said and "fix: free some" in said


def test_other_faults_are_none_of_the_machine() -> None:
    """They keep their traceback."""
    assert of_machine(OSError(errno.EINVAL, os.strerror(errno.EINVAL))) is None
    assert of_machine(sqlite3.OperationalError("no such table")) is None
    assert of_machine(ValueError("os error 28")) is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_full_disk_stops_a_build_that_then_completes(disk: Path, tmp_path: Path) -> None:
    """At four stages, each time with one message; with room again the build equals an undisturbed one."""
    space = new(disk / "project")
    assert space.draftmill("compose").code == 0
    for left in (64_000, 400_000, 1_500_000, 3_000_000):
        fill(disk, left)
        done = space.dvc("repro")
        assert done.code != 0 and "Traceback" not in done.text, (left, done.text)
        assert "space left" in done.text or "do not fit on the disk" in done.text, (left, done.text)
    (disk / "filler").unlink()
    space.repro()
    assert_equal_builds(space, copied(tmp_path / "undisturbed"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_cache_that_is_read_only_stops_a_build_that_then_completes(tmp_path: Path) -> None:
    """DVC's cache, then .draftmill/: the message names the file; writable again, the build completes."""
    space = new(tmp_path / "project")
    assert space.draftmill("compose").code == 0
    for folder in (".dvc/cache", ".draftmill"):
        path = space.path(folder)
        shutil.rmtree(path, ignore_errors=True)
        if not mounted(path, "64m"):
            pytest.skip("no file system can be mounted here")
        try:
            subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
            done = space.dvc("repro")
            assert done.code != 0 and "Traceback" not in done.text, done.text
            assert "ead-only file system" in done.text and folder in done.text, done.text
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
    space.repro()
    assert_equal_builds(space, copied(tmp_path / "undisturbed"))
