"""Hidden states of real servers on CPU against transformers': `make test-engines`.

SGLang with a stand-in for torchvision, which does not import there (sglang_on_cpu/); vLLM with stand-ins for what its
connector takes from a CUDA device (vllm_on_cpu/). The environments are made by requirements/environments.sh; without
them the tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from draftmill.hidden_states import States, StatesRun, recheck, stage
from draftmill.hidden_states.engines import Local, Vllm, command
from draftmill.hidden_states.sglang import Sglang
from draftmill.target import Target, prepare, renderer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
DEPS = HERE.parent / ".deps"
THREADS = len(os.sched_getaffinity(0))
TEXTS = (
    "The tides follow the moon, because its pull is stronger on the near side of the earth.",
    "def add(a, b):\n    return a + b\n",
    "Bread rises when yeast turns sugar into gas.",
    "Zürich, Köln, Łódź; 東京. Prices: 3 € and £4.",
)
VLLM = "--dtype float32 --max-model-len 512 --max-num-seqs 8 --max-num-batched-tokens 2048 --enforce-eager"
SGLANG = (
    "--device cpu --dtype float32 --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph "
    "--disable-radix-cache --mem-fraction-static 0.2 --max-total-tokens 8192 "
    "--enable-return-aux-hidden-states --speculative-algorithm EAGLE3"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("states")
        patch.chdir(folder)
        patch.delenv("DRAFTMILL_KEEP", raising=False)
        yield folder


@contextlib.contextmanager
def served(command: str, needs: str, path: str, log: Path, **environment: str) -> Iterator[str]:
    """The URL of a server started with `command`, whose {port} is filled in; stopped afterwards."""
    if not (DEPS / needs / ".ready").exists():
        pytest.skip(f"no .deps/{needs}: requirements/environments.sh makes it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    full = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS), **environment}
    words = [str(DEPS / "vllm/bin/python"), *shlex.split(command.replace("{port}", str(port)))]
    with open(log, "wb") as said:
        server = subprocess.Popen(words, stdout=said, stderr=said, env=full, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"the server ended:\n{log.read_text(errors='replace')[-3000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    pytest.fail(f"the server did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def write_tokens(ids: list[list[int]]) -> None:
    path = Path("build/tokenize/d/tokens.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"id": [str(i) for i in range(len(ids))], "input_ids": pa.array(ids, pa.list_(pa.int32()))}
    pq.write_table(pa.table(columns), path)


def test_stored_states_equal_sglangs(smollm2: Target, project: Path) -> None:
    torch.set_num_threads(THREADS)
    ids = [renderer(smollm2).encode(text) for text in TEXTS]
    write_tokens(ids)
    work = stage.job("d", States(for_=["eagle3"], dtype="float32"), StatesRun(), smollm2)
    assert work.layers == (2, 15, 27)
    stage.build(work, lambda: stage.engine(work, smollm2, "cpu"))
    command = f"-m sglang.launch_server --model-path {prepare(smollm2)} --port {{port}} {SGLANG}"
    with served(command, "sglang", f"{HERE}/sglang_on_cpu:{DEPS}/sglang", project / "sglang.log") as url:
        server = Sglang(url, work.layers, work.hidden_size)
        found = recheck.sampled(Path("build/hidden_states/d"), server, len(ids), work.layers, final=False)
    assert {one.layer for one in found} == {"2", "15", "27"} and len(found) == 3 * len(ids)
    assert max(one.distance for one in found) < 1e-4


def test_states_captured_from_vllm_equal_those_captured_here(tiny_target: Target, project: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=128,
            intermediate_size=192,
            num_hidden_layers=8,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,  # the smallest that vLLM's attention on CPUs has
            vocab_size=512,
            max_position_embeddings=512,
        )
    ).eval()
    folder = project / "model"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(prepare(tiny_target) / name, folder / name)
    random = np.random.default_rng(0)
    ids = [random.integers(0, 256, length).tolist() for length in (7, 33, 12, 200, 1)]
    write_tokens(ids)
    layers = (2, 4, 5)
    vllm, flags = command(str(folder), [*layers, 8], str(project / "shared")).removeprefix("vllm serve "), VLLM
    start = f"-m vllm.entrypoints.openai.api_server --port {{port}} --model {vllm} {flags}"
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with served(start, "vllm", f"{HERE}/vllm_on_cpu", project / "vllm.log", **environment) as url:
        run = StatesRun(url=url, recheck_rows=0, timeout_s=120)
        work = stage.Job(
            dataset="d",
            states=States(for_=["eagle3"], dtype="float32", engine="vllm"),
            run=run,
            target={"name": "tiny", "revision": None, "weights": "w", "states": "vllm"},
            num_layers=8,
            hidden_size=128,
        )
        stage.build(work, lambda: Vllm(run, str(folder), (*layers, 8)))
    found = recheck.sampled(Path("build/hidden_states/d"), Local(model), len(ids))
    assert {one.layer for one in found} == {"2", "4", "5", "last"} and len(found) == 4 * len(ids)
    assert max(one.distance for one in found) < 1e-4
    assert not list((project / "shared").iterdir())
