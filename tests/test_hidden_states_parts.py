"""The parts of the stage: batches and shards, hooks, the vLLM client, states for training without storing."""

from __future__ import annotations

import fcntl
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from states import HIDDEN, LAYERS, make_job, make_model, make_rows, reference, write_tokens

from draftmill.errors import BuildError, ConfigError, DataError
from draftmill.hidden_states import StatesRun, pack, stage
from draftmill.hidden_states.capture import blocks, capturing
from draftmill.hidden_states.engines import Local, Vllm, command
from draftmill.hidden_states.manifest import fingerprint
from draftmill.hidden_states.online import Online
from draftmill.hidden_states.shards import open_file, row_sum
from draftmill.hidden_states.store import Reader

LENGTHS = st.lists(st.integers(1, 500), max_size=60).map(lambda lengths: sorted(lengths, reverse=True))


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


class TestPack:
    @given(LENGTHS, st.integers(1, 2000))
    def test_batches(self, lengths: list[int], budget: int) -> None:
        made = pack.batches(lengths, budget)
        assert [i for batch in made for i in batch] == list(range(len(lengths)))
        for batch in made:
            assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= budget
        assert pack.padding(lengths, made) <= pack.MAX_PADDING

    @given(LENGTHS, st.integers(1, 2000))
    def test_shards(self, lengths: list[int], limit: int) -> None:
        made = pack.shards(lengths, limit)
        assert [i for shard in made for i in shard] == list(range(len(lengths)))
        assert all(len(shard) == 1 or sum(lengths[i] for i in shard) <= limit for shard in made)

    def test_equal_lengths_fill_the_budget(self) -> None:
        assert [len(batch) for batch in pack.batches([10] * 25, 100)] == [10, 10, 5]


class TestCapture:
    def test_only_the_wanted_blocks_run(self, model: Any) -> None:
        ran: list[int] = []
        handles = [block.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, block in enumerate(blocks(model))]
        head = model.lm_head.register_forward_hook(lambda *_: ran.append(99))
        try:
            with capturing(model, [2, 4]) as capture:
                found = capture([torch.arange(5)])
        finally:
            for handle in (*handles, head):
                handle.remove()
        assert sorted(found) == [2, 4] and found[4].shape == (1, 5, HIDDEN)
        assert ran == [0, 1, 2] or ran == [0, 1, 2, 3]

    def test_the_hooks_are_gone_afterwards(self, model: Any) -> None:
        before = [len(block._forward_hooks) for block in blocks(model)]
        with capturing(model, [LAYERS]) as capture:
            capture([torch.arange(5)])
            assert model(torch.arange(3)[None]).logits.shape[1] == 3  # others may use the model meanwhile
        assert [len(block._forward_hooks) for block in blocks(model)] == before
        assert model(torch.arange(3)[None]).logits.shape[1] == 3

    def test_padding_changes_no_real_position(self, model: Any) -> None:
        rows = [torch.arange(9), torch.arange(4), torch.arange(7)]
        with capturing(model, [2, LAYERS]) as capture:
            together, alone = capture(rows), [capture([row]) for row in rows]
            for i, row in enumerate(rows):
                for layer in (2, LAYERS):
                    expected = alone[i][layer][0]
                    torch.testing.assert_close(together[layer][i, : len(row)], expected, rtol=1e-5, atol=1e-6)

    def test_a_model_without_blocks(self) -> None:
        broken = torch.nn.Linear(2, 2)
        broken.config = make_model().config
        with pytest.raises(BuildError, match="has no list of 8 blocks"):
            blocks(broken)


class TestFiles:
    def test_fingerprints_depend_on_every_id_and_nothing_else(self) -> None:
        ids = np.arange(5, dtype=np.int32)
        assert fingerprint(ids) == fingerprint(ids.astype(np.int64)) == fingerprint(ids[::-1][::-1])
        assert len({fingerprint(ids), fingerprint(ids[:4]), fingerprint(ids[::-1])}) == 3

    @given(st.binary(min_size=1, max_size=100), st.data())
    def test_a_row_sum_sees_each_changed_byte(self, raw: bytes, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(raw) - 1))
        changed = bytearray(raw)
        changed[at] ^= data.draw(st.integers(1, 255))
        sums = [row_sum(torch.frombuffer(bytearray(b), dtype=torch.uint8)) for b in (raw, changed)]
        assert sums[0] != sums[1] or at % 8 == 7  # the top bit of a word is the one that modulo 2**63 folds

    def test_not_a_safetensors_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"\xff" * 100)
        with pytest.raises(DataError, match="cannot be read as safetensors"):
            open_file(tmp_path / "x")

    def test_a_reader_can_be_sent_to_a_worker(
        self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_tokens("d", make_rows(2))
        stage.build(make_job(), lambda: Local(model))
        reader = Reader("build/hidden_states/d", layers=(4,), weights="w0")
        shard = next(iter(reader.manifest.shards))
        first = reader.read(shard, 0, reader._open(shard).parts[0].tensors["ends"][0].item())
        again = pickle.loads(pickle.dumps(reader))
        assert again.layers == (4,) and torch.equal(again.read(shard, 0, len(first[1]))[0], first[0])


class TestOnline:
    def test_it_gives_what_the_shards_hold(self, model: Any) -> None:
        rows = make_rows(12)
        reference(model, rows[0], (2,))  # transformers leaves hooks of its own
        before = [len(block._forward_hooks) for block in blocks(model)]
        with Online(model, (5, 2)) as online:
            for ids, (aux, last) in zip(rows, online.read_batch([row.tolist() for row in rows], 100), strict=True):
                wanted, normed = reference(model, ids, (5, 2))
                torch.testing.assert_close(aux, wanted, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(model.model.norm(last), normed, rtol=1e-4, atol=1e-4)
            aux, last = online.read(torch.from_numpy(rows[0]))
            assert aux.shape == (len(rows[0]), 2 * HIDDEN) and last.shape == (len(rows[0]), HIDDEN)
        assert [len(block._forward_hooks) for block in blocks(model)] == before

    def test_another_dtype(self, model: Any) -> None:
        with Online(model, (2,), torch.bfloat16) as online:
            aux, last = online.read([1, 2, 3])
        assert aux.dtype == last.dtype == torch.bfloat16

    def test_the_stage_stores_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import pyarrow.parquet as pq

        monkeypatch.chdir(tmp_path)
        write_tokens("d", make_rows(3))
        stage.build(make_job(mode="online"), lambda: pytest.fail("no model is needed"))
        assert sorted(p.name for p in Path("build/hidden_states/d").iterdir()) == ["index.parquet", "manifest.json"]
        rows = pq.read_table("build/hidden_states/d/index.parquet").to_pylist()
        assert [row["shard"] for row in rows] == [None] * 3
        assert [row["length"] for row in rows] == [len(ids) for ids in make_rows(3)]


class Server(ThreadingHTTPServer):
    """Speaks vLLM's documented interface for hidden states; `spoil` may change what it writes or answers."""

    def __init__(self, model: Any, layers: list[int], folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.layers, self.folder = model, layers, folder
        self.spoil: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = lambda tensors: tensors
        self.broken, self.count, self.lock = 0, 0, threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "the-target"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.count += 1
            if server.broken:
                server.broken -= 1
                return self.reply(503, {"error": "loading"})
            path = server.folder / f"{server.count}.safetensors"
        if request["model"] != "the-target" or request["max_tokens"] != 1:
            return self.reply(400, {"error": "no such model"})
        ids = torch.tensor(request["prompt"])
        with server.lock, capturing(server.model, server.layers) as capture:
            found = capture([ids])
        states = torch.stack([found[layer][0] for layer in server.layers], dim=1)
        lock = open(f"{path}.lock", "w")  # noqa: SIM115  (held until the file is whole)
        fcntl.flock(lock, fcntl.LOCK_EX)
        tensors = server.spoil({"hidden_states": states.contiguous(), "token_ids": ids})
        threading.Thread(target=self.write, args=(tensors, path, lock)).start()
        return self.reply(200, {"kv_transfer_params": {"hidden_states_path": str(path)}, "choices": []})

    @staticmethod
    def write(tensors: dict[str, torch.Tensor], path: Path, lock: Any) -> None:
        time.sleep(0.02)  # the answer comes before the file is whole
        save_file(tensors, path)
        lock.close()


class TestVllm:
    @pytest.fixture
    def server(self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / "shared"
        folder.mkdir()
        server = Server(model, [2, 4, 5, LAYERS], folder)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        server.server_close()

    @staticmethod
    def engine(server: Server, layers: tuple[int, ...] = (2, 4, 5, LAYERS)) -> Vllm:
        return Vllm(StatesRun(url=server.url, concurrency=3, timeout_s=20), "models/x", layers)

    def test_a_whole_stage(self, server: Server, model: Any) -> None:
        import pyarrow.parquet as pq

        rows = make_rows(8)
        write_tokens("d", rows)
        server.broken = 1
        stage.build(make_job(engine="vllm", recheck_rows=2), lambda: self.engine(server))
        reader = Reader("build/hidden_states/d")
        index = pq.read_table("build/hidden_states/d/index.parquet").to_pylist()
        for place, ids in zip(index, rows, strict=True):
            aux, last = reader.read(place["shard"], place["offset"], place["length"])
            wanted, normed = reference(model, ids, (2, 4, 5))
            torch.testing.assert_close(aux, wanted, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(model.model.norm(last), normed, rtol=1e-4, atol=1e-4)
        assert not list(server.folder.iterdir())

    def test_no_server_is_named(self) -> None:
        with pytest.raises(ConfigError, match="no server is named") as caught:
            Vllm(StatesRun(), "models/x", (2, 8))
        assert "vllm serve models/x" in str(caught.value) and "[2, 8]" in str(caught.value)

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda t: t | {"token_ids": t["token_ids"].flip(0)}, "other tokens than were sent"),
            (lambda t: t | {"hidden_states": t["hidden_states"][:, :3].contiguous()}, r"not \[3, 4, H\]"),
        ],
    )
    def test_wrong_answers(self, server: Server, spoil: Any, words: str) -> None:
        server.spoil = spoil
        with (
            pytest.raises(BuildError, match=words) as caught,
            self.engine(server).open((2,)) as batch,
        ):
            batch([np.array([1, 2, 3], np.int32)])
        assert "--kv-transfer-config" in str(caught.value)

    def test_nobody_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("time.sleep", lambda _: None)
        with pytest.raises(BuildError, match="no answer"):
            Vllm(StatesRun(url="http://127.0.0.1:9", timeout_s=1), "models/x", (2,))

    def test_the_command_names_the_layers_and_the_folder(self) -> None:
        said = command("models/x", (2, 15, 27, 30), "/shared")
        assert '"eagle_aux_hidden_state_layer_ids": [2, 15, 27, 30]' in said
        assert '"shared_storage_path": "/shared"' in said and "ExampleHiddenStatesConnector" in said


class SglangHandler(Handler):
    """SGLang's /generate with return_hidden_states: the layers concatenated, as JSON floats."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/generate" and request["return_hidden_states"] and request["extra_key"]
        with self.server.lock, capturing(self.server.model, self.server.layers) as capture:
            found = capture([torch.tensor(request["input_ids"])])
        states = torch.cat([found[layer][0] for layer in self.server.layers], dim=-1)
        return self.reply(200, {"text": "", "meta_info": {"hidden_states": [states.tolist()]}})


class TestChecks:
    """`draftmill check-states`, in process and against an SGLang server."""

    @pytest.fixture(autouse=True)
    def built(self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write_tokens("d", make_rows(12))
        stage.build(make_job(for_=["eagle3", "dflash"]), lambda: Local(model))

    def run(self, *arguments: str) -> str:
        from typer.testing import CliRunner

        from draftmill.cli.states import app

        done = CliRunner().invoke(app, ["d", *arguments], catch_exceptions=False)
        assert done.exit_code == 0
        return str(done.output)

    def test_checksums_alone(self) -> None:
        assert "every checksum holds" in self.run("--rows", "0")

    def test_against_sglang(self, model: Any, tmp_path: Path) -> None:
        server = Server(model, [2, 4, 5], tmp_path)
        server.RequestHandlerClass = SglangHandler
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert "3 rows computed again, layers 2, 4, 5: relative" in self.run("--rows", "3", "--sglang", server.url)
            server.layers = [3, 5, 6]  # every layer one too high
            with pytest.raises(BuildError, match="differs at layer 2"):
                self.run("--sglang", server.url)
            server.layers = [2, 4]
            with pytest.raises(BuildError, match="its states are") as caught:
                self.run("--sglang", server.url)
            assert "--return-aux-hidden-state-layer-ids 1 3 4" in str(caught.value)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
