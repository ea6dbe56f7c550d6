"""Datasets of the Hugging Face Hub: which files are meant, and their download into the usual cache.

`datasets` resolves id, config, split and revision to files, exactly as it does for everybody; the files
themselves are then read by `draftmill.extract.readers`, because loaders that infer a schema change rows.
HF_TOKEN, HF_HOME and HF_ENDPOINT of the environment are obeyed; a token in a file is not looked for.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from draftmill.errors import DataError, did_you_mean
from draftmill.extract.source import Source, listed

T = TypeVar("T")
ATTEMPTS = 4
PAUSE_S = 1.0
CONNECTIONS = 4


def download(source: Source) -> list[tuple[str, str]]:
    """(name to show, local path) of the source's files, downloaded where they are not there yet.

    Raises DataError for a gated, missing or script dataset, for a configuration or split that is not
    there (it names those that are), and for a Hub that cannot be reached.
    """
    from huggingface_hub import hf_hub_download

    hub = source.hub or ""
    revision, files = _asked(lambda: _files(source, hub), hub)

    def fetch(file: str) -> str:
        return _persistently(lambda: hf_hub_download(hub, file, repo_type="dataset", revision=revision, token=_token()))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        paths = _asked(lambda: list(pool.map(fetch, files)), hub)
    return sorted(zip((f"{hub}/{file}" for file in files), paths, strict=True))


def latest(hub: str, revision: str | None = None) -> str:
    """The commit that a revision (by default the main branch) of a dataset stands at."""
    from huggingface_hub import HfApi

    return _asked(lambda: str(HfApi().dataset_info(hub, revision=revision, token=_token()).sha), hub)


def _token() -> str | bool:
    # False, not None: huggingface_hub would look into the home folder.
    return os.environ.get("HF_TOKEN") or False


def _page(hub: str) -> str:
    return f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/datasets/{hub}"


def _files(source: Source, hub: str) -> tuple[str, list[str]]:
    """(commit, paths in the repository)."""
    if source.data_files:
        return _by_glob(source, hub)
    import datasets

    # An id that is also a folder here must not mean the folder.
    name = f"hf://datasets/{hub}" if Path(hub).exists() else hub
    builder = datasets.load_dataset_builder(name, name=source.config, revision=source.revision, token=_token())
    splits = {str(split): list(files) for split, files in (builder.config.data_files or {}).items()}
    wanted = listed(source.split) or list(splits)
    if not source.split and len(splits) > 1:
        there = ", ".join(sorted(splits))
        raise DataError(f"{hub} has several splits: {there}", key="source.split", fix="add  split: <one or a list>")
    for split in wanted:
        if split not in splits:
            found = f"splits there are: {', '.join(sorted(splits))}"
            fix = did_you_mean(split, splits)
            raise DataError(f"{hub} has no split '{split}'", key="source.split", found=found, fix=fix)
    addresses = [address for split in wanted for address in splits[split]]
    prefix = f"hf://datasets/{hub}@{builder.hash}/"
    return builder.hash, sorted({address.removeprefix(prefix) for address in addresses})


def _by_glob(source: Source, hub: str) -> tuple[str, list[str]]:
    """Files of the repository that match `data_files`; `*` matches over folders too."""
    from huggingface_hub import HfApi

    commit = str(HfApi().dataset_info(hub, revision=source.revision, token=_token()).sha)
    there = HfApi().list_repo_files(hub, repo_type="dataset", revision=commit, token=_token())
    found: set[str] = set()
    for pattern in listed(source.data_files):
        matched = fnmatch.filter(there, pattern)
        if not matched:
            message = f"no file of {hub} matches '{pattern}'"
            raise DataError(message, key="source.data_files", fix=did_you_mean(pattern, there[:20]))
        found.update(matched)
    return commit, sorted(found)


def _persistently(fetch: Callable[[], T]) -> T:
    """Try again where a connection broke; what had come is kept and gone on with."""
    for attempt in range(1, ATTEMPTS):
        try:
            return fetch()
        except Exception as error:
            if not _transient(error):
                raise
            time.sleep(PAUSE_S * attempt)
    return fetch()


def _kinds(error: Exception) -> set[str]:
    # By name: the package below huggingface_hub that raises them differs between its versions.
    return {kind.__name__ for kind in type(error).__mro__}


def _status(error: BaseException | None) -> int | None:
    """The HTTP status that an error came of, also where it was wrapped."""
    while error is not None:
        if (response := getattr(error, "response", None)) is not None:
            return int(response.status_code)
        error = error.__cause__ or error.__context__
    return None


def _transient(error: Exception) -> bool:
    """Whether asking again may help: the connection failed, or the server has too much to do."""
    if status := _status(error):
        return status in (408, 429) or status >= 500
    kinds = _kinds(error)
    return bool(kinds & {"TransportError", "RequestException", "ConnectionError", "LocalEntryNotFoundError"})


def _asked(ask: Callable[[], T], hub: str) -> T:
    """The Hub's answer, with its refusals as errors that say what to do."""
    try:
        return ask()
    except DataError:
        raise
    except Exception as error:
        known = _explained(error, hub)
        if known is None:
            raise
        raise known from None


def _explained(error: Exception, hub: str) -> DataError | None:
    text, kinds = str(error).strip(), _kinds(error)
    first = text.split("\n", maxsplit=1)[0]
    if "GatedRepoError" in kinds or "gated dataset" in text:
        fix = f"accept its conditions on {_page(hub)}, then set HF_TOKEN to a token of that account"
        return DataError(f"{hub} is a gated dataset", key="source.hub", fix=fix)
    if "RuntimeError" in kinds and "scripts are no longer supported" in text:
        fix = "name its data files:  data_files: data/*.parquet  - or take a copy in Parquet or JSON Lines"
        return DataError(f"{hub} is made by a Python script, which is not run", key="source.hub", found=first, fix=fix)
    if "RevisionNotFoundError" in kinds or "Revision " in text:
        return DataError(
            f"{hub} has no such revision", key="source.revision", found=first, fix=f"see {_page(hub)}/commits"
        )
    if kinds & {"RepositoryNotFoundError", "DatasetNotFoundError"}:
        fix = f"check the id on {_page(hub)}; a private one needs HF_TOKEN"
        return DataError(f"{hub} does not exist on the Hub, or is private", key="source.hub", fix=fix)
    if (status := _status(error)) in (401, 403):
        fix = f"accept its conditions on {_page(hub)} if there are any, then set HF_TOKEN"
        return DataError(f"{hub} may not be read without leave ({status})", key="source.hub", fix=fix)
    if kinds & {"EmptyDatasetError", "DataFilesNotFoundError"}:
        fix = "name its files:  data_files: <glob>  instead of config and split"
        return DataError(f"no data files are known in {hub}", key="source.hub", found=first[:200], fix=fix)
    if "ValueError" in kinds:
        return DataError(f"{hub}: {' '.join(text.split())[:400]}", key="source.config")
    if kinds & {"OSError", "TransportError", "RequestException", "EntryNotFoundError"}:
        return DataError(
            f"{hub} could not be fetched: {first[:300]}", key="source.hub", fix="check the network; run again to go on"
        )
    return None
