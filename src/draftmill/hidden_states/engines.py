"""Who computes hidden states: the model in this process, or a vLLM server that writes them to a shared folder.

An engine is opened for a layer set and then maps rows of token ids to {layer: states [B, longest, H]}.

vLLM's interface, as documented (features/speculative_decoding/extract_hidden_states): a completion of one
token answers with `kv_transfer_params.hidden_states_path`, a safetensors file with hidden_states [T, L, H] and
token_ids [T]. The writer holds an exclusive lock on <path>.lock until the file is whole. Its layer ids are
hidden_states indices; the number of blocks means the state before the final norm. Tested against vLLM 0.32 on a CPU,
with stand-ins for the CUDA events and streams of its connector; on GPUs it has not been run here.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from draftmill.errors import BuildError, ConfigError
from draftmill.hidden_states import StatesRun
from draftmill.hidden_states.capture import capturing
from draftmill.hidden_states.manifest import Ids
from draftmill.hidden_states.shards import open_file

Batch = Callable[[Sequence[Ids]], dict[int, Tensor]]
ATTEMPTS = 4


class Engine(Protocol):
    """Computes hidden states at a layer set, given anew for each use."""

    def open(self, layers: Sequence[int]) -> AbstractContextManager[Batch]:
        """A function from rows of token ids to {layer: [B, longest, H]}, padded on the right."""


class Local:
    """The target's model in this process."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @contextmanager
    def open(self, layers: Sequence[int]) -> Iterator[Batch]:
        """Hooks at these layers while the context lasts."""
        with capturing(self.model, layers) as capture:
            yield lambda rows: capture([torch.tensor(row, dtype=torch.int64) for row in rows])


class Vllm:
    """A vLLM server that was started with `command(...)`; its folder must be visible here under the same path.

    `served` are all layers the server extracts, in the order of its command line.
    Raises ConfigError if no URL is set, BuildError if the server does not answer as documented.
    """

    def __init__(self, run: StatesRun, model: str, served: Sequence[int]) -> None:
        self.command = command(model, served)
        if run.url is None:
            raise ConfigError(
                "states.engine is vllm, and no server is named",
                file="conf/run/default.yaml",
                key="hidden_states.url",
                fix=f"start one:  {self.command}",
            )
        self.url, self.run, self.served = run.url.rstrip("/"), run, tuple(served)
        self.model = ask(f"{self.url}/v1/models", None, run.timeout_s)["data"][0]["id"]

    @contextmanager
    def open(self, layers: Sequence[int]) -> Iterator[Batch]:
        """Requests of one batch run together."""
        with ThreadPoolExecutor(self.run.concurrency) as pool:

            def batch(rows: Sequence[Ids]) -> dict[int, Tensor]:
                states = nn.utils.rnn.pad_sequence(list(pool.map(self._row, rows)), batch_first=True)
                return {layer: states[:, :, self.served.index(layer)] for layer in layers}

            yield batch

    def _row(self, ids: Ids) -> Tensor:
        body = {"model": self.model, "prompt": ids.tolist(), "max_tokens": 1, "temperature": 0}
        answer = ask(f"{self.url}/v1/completions", body, self.run.timeout_s)
        path = (answer.get("kv_transfer_params") or {}).get("hidden_states_path")
        if not path:
            raise self._wrong("its answer names no hidden_states_path")
        tensors = _take(Path(path))
        states, found = tensors["hidden_states"], tensors["token_ids"]
        if found.tolist() != ids.tolist():
            raise self._wrong("it computed other tokens than were sent")
        if states.shape[:2] != (len(ids), len(self.served)):
            raise self._wrong(f"its states are {list(states.shape)}, not [{len(ids)}, {len(self.served)}, H]")
        return states

    def _wrong(self, what: str) -> BuildError:
        fix = f"start it with:  {self.command}"
        return BuildError(f"the vLLM server does not answer as it should: {what}", file=self.url, fix=fix)


def command(model: str, layers: Sequence[int], folder: str = "/dev/shm/draftmill-states") -> str:
    """The command that starts a vLLM server for these layers."""
    settings = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}},
    }
    connector = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": folder},
    }
    return (
        f"vllm serve {model} --no-enable-chunked-prefill --no-enable-prefix-caching "
        f"--speculative-config '{json.dumps(settings)}' --kv-transfer-config '{json.dumps(connector)}'"
    )


def _take(path: Path) -> dict[str, Tensor]:
    """Wait until the writer is done, read the file into memory, and remove it."""
    lock = Path(f"{path}.lock")
    if lock.exists():
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # sleeps until the writer lets go
    if not path.exists():
        fix = "its shared_storage_path must be a folder that this machine sees under the same path; see its log"
        raise BuildError("the vLLM server named a file that is not here", file=path, fix=fix)
    _, tensors = open_file(path)
    copied = {name: tensor.clone() for name, tensor in tensors.items()}
    path.unlink(missing_ok=True)
    lock.unlink(missing_ok=True)
    return copied


def ask(url: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
    """POST JSON (or GET without a body) and return the JSON answer; 5xx and broken connections are tried again.

    Raises BuildError with the server's words.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    said = ""
    for attempt in range(ATTEMPTS):
        time.sleep(0.1 * 3**attempt if attempt else 0)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            said = f"{error.code} {error.read(500).decode(errors='replace')}"
            error.close()
            if error.code < 500:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            said = str(error) or type(error).__name__
    raise BuildError(f"no answer: {said}", file=url, fix="see the server's log; is it the server of this target?")
