"""Stored states of the embedded target against a real SGLang server on CPU: `make test-engines`.

The environment is made by requirements/environments.sh; without it the test is skipped.
"""

from __future__ import annotations

import os
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
from draftmill.hidden_states.sglang import Sglang
from draftmill.target import Target, prepare, renderer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

DEPS = Path(__file__).parent.parent / ".deps"
TEXTS = (
    "The tides follow the moon, because its pull is stronger on the near side of the earth.",
    "def add(a, b):\n    return a + b\n",
    "Bread rises when yeast turns sugar into gas.",
    "Zürich, Köln, Łódź; 東京. Prices: 3 € and £4.",
)
FLAGS = (
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


@pytest.fixture(scope="module")
def url(smollm2: Target, project: Path) -> Iterator[str]:
    if not (DEPS / "sglang/.ready").exists():
        pytest.skip("no .deps/sglang: requirements/environments.sh makes it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"{DEPS}/vllm/bin/python -m sglang.launch_server --model-path {prepare(smollm2)} --port {port} {FLAGS}"
    environment = {**os.environ, "PYTHONPATH": str(DEPS / "sglang"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    with open(project / "server.log", "wb") as log:
        server = subprocess.Popen(command.split(), stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, project / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)
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


def test_stored_states_equal_sglangs(smollm2: Target, url: str) -> None:
    torch.set_num_threads(2)
    ids = [renderer(smollm2).encode(text) for text in TEXTS]
    path = Path("build/tokenize/d/tokens.parquet")
    path.parent.mkdir(parents=True)
    columns = {"id": [str(i) for i in range(len(ids))], "input_ids": pa.array(ids, pa.list_(pa.int32()))}
    pq.write_table(pa.table(columns), path)
    work = stage.job("d", States(for_=["eagle3"], dtype="float32"), StatesRun(), smollm2)
    assert work.layers == (2, 15, 27)
    stage.build(work, lambda: stage.engine(work, smollm2, "cpu"))
    server = Sglang(url, work.layers, work.hidden_size)
    found = recheck.sampled(Path("build/hidden_states/d"), server, len(ids), work.layers, final=False)
    assert {one.layer for one in found} == {"2", "15", "27"} and len(found) == 3 * len(ids)
    assert max(one.distance for one in found) < 1e-4
    with server.open(work.layers) as batch:
        alone = batch([np.array(ids[1], np.int32)])
    assert alone[15].shape == (1, len(ids[1]), work.hidden_size)
