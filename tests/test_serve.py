"""bench-serve: command lines and a stand-in server; the real ones are in test_serve_engines.py."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftmill.errors import BuildError
from draftmill.evaluate.serve import Comparison, Server, measure, running


def test_vllm_command_line() -> None:
    server = Server(kind="vllm", python="py", target=Path("/t"), flags=("--enforce-eager",))
    plain, drafted = server.command(None), server.command(Path("/d"), "dflash")
    assert plain[:5] == ["py", "-m", "vllm.entrypoints.openai.api_server", "--model", "/t"]
    assert "--speculative-config" not in plain and "--enforce-eager" in plain
    config = json.loads(drafted[drafted.index("--speculative-config") + 1])
    assert config == {"method": "dflash", "model": "/d", "num_speculative_tokens": 3}


def test_sglang_command_line_never_says_eagle() -> None:
    server = Server(kind="sglang", python="py", target=Path("/t"), draft_tokens=3)
    line = server.command(Path("/d"), "eagle3")
    assert line[line.index("--speculative-algorithm") + 1] == "EAGLE3"
    assert line[line.index("--speculative-num-draft-tokens") + 1] == "4"
    block = server.command(Path("/d"), "dflash")
    assert block[block.index("--speculative-algorithm") + 1] == "DFLASH" and "--speculative-num-steps" not in block


class Stub(BaseHTTPRequestHandler):
    """Answers like either server; every answer took half as many passes as tokens."""

    drafts = 0

    def log_message(self, *_: Any) -> None: ...

    def _reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        lines = [f'vllm:spec_decode_num_drafts_total{{engine="0"}} {Stub.drafts}.0']
        lines += [f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {Stub.drafts // 2}.0']
        self._reply("\n".join(lines).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Stub.drafts += 4
        if self.path == "/generate":
            ids = [7] * asked["sampling_params"]["max_new_tokens"]
            self._reply(json.dumps({"output_ids": ids, "meta_info": {"spec_verify_ct": len(ids) // 2}}).encode())
        elif asked["prompt"] == [0]:
            self.send_error(400, "no")
        else:
            self._reply(json.dumps({"choices": [{"token_ids": [1] * asked["max_tokens"]}]}).encode())


@pytest.fixture
def port() -> Iterator[int]:
    Stub.drafts = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_measure_reads_tokens_and_accept_length(port: int) -> None:
    vllm = Server(kind="vllm", python="py", target=Path("/t"), port=port)
    served = measure(vllm, [[1, 2], [3]], in_flight=2, max_new_tokens=6)
    assert served.tokens == 12 and served.answers == [[1] * 6] * 2 and served.rate > 0
    assert served.accept_length == 1.5
    sglang = Server(kind="sglang", python="py", target=Path("/t"), port=port)
    assert measure(sglang, [[1], [2]], 1, 9).accept_length == 2.0  # 2 · 9 tokens, 2 of the prompts, 2 · 4 passes
    with pytest.raises(BuildError, match="refused a prompt"):
        measure(vllm, [[0]], 1, 4)


def test_comparison_counts_equal_texts(port: int) -> None:
    vllm = Server(kind="vllm", python="py", target=Path("/t"), port=port)
    one, other = measure(vllm, [[1], [2]], 1, 4), measure(vllm, [[1], [2]], 1, 5)
    assert Comparison(plain=[one], drafted=[one]).same_text == 2
    found = Comparison(plain=[one], drafted=[other])
    assert found.same_text == 0 and found.rows()[0]["in_flight"] == 1


def test_a_port_that_is_taken_is_an_error_before_anything_starts(port: int) -> None:
    """Else the server that is there already would be measured."""
    server = Server(kind="vllm", python="py", target=Path("/t"), port=port)
    with pytest.raises(BuildError, match=f"port {port} is taken"), running(server, ["no such program"], {}):
        pass


def test_server_that_ends_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = Server(kind="vllm", python="py", target=Path("/t"), port=1)
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with pytest.raises(BuildError, match="ended while starting") as caught, running(server, command, {}):
        pass
    assert "no such model" in str(caught.value)


def test_server_is_stopped_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "server.py"
    program.write_text(
        "import http.server, os, pathlib\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "class H(http.server.SimpleHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), H)\n"
        "pathlib.Path('port').write_text(str(server.server_address[1]))\n"
        "server.serve_forever()\n"
    )
    monkeypatch.setattr(Server, "url", property(lambda self: f"http://127.0.0.1:{Path('port').read_text()}"))
    Path("port").write_text("1")
    server = Server(kind="vllm", python="py", target=Path("/t"))
    with running(server, [sys.executable, str(program)], {}):
        pid = int(Path("pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_command_prints_the_table(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command from params.yaml to the printed figures; the server is the stand-in, already running."""
    from contextlib import nullcontext

    import yaml
    from drafting import SPANS
    from typer.testing import CliRunner

    from draftmill.cli import application
    from draftmill.errors import UsageError

    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("drafter").mkdir()
    Path("drafter/config.json").write_text("{}")
    rows = {
        "dataset": ["d", "d"],
        "id": ["a", "b"],
        "input_ids": pa.array([[5, 6, 7, 8]] * 2, pa.list_(pa.int32())),
        "spans": pa.array([[{"turn": 0, "start": 2, "end": 4, "origin": "generated"}]] * 2, SPANS),
    }
    Path("build/blend").mkdir(parents=True)
    pq.write_table(pa.table(rows), "build/blend/heldout.parquet")
    Path("build/evaluate").mkdir()
    Path("build/evaluate/metrics.json").write_text('{"accept_length": 1.4}')
    target = {"name": "t", "source": {"path": "model"}}
    Path("params.yaml").write_text(yaml.safe_dump({"seed": 0, "evaluate": {}, "target": target}))
    monkeypatch.setattr("draftmill.evaluate.serve.running", lambda *_: nullcontext())
    line = ["bench-serve", "--drafter", "drafter", "--port", str(port), "--in-flight", "1,2", "--max-new-tokens", "6"]
    done = CliRunner().invoke(application(), [*line, "--json", "figures.json"])
    assert done.exit_code == 0, done.output
    assert "in_flight 2" in done.output and "2 of 2 prompts" in done.output and "evaluate measured: 1.4" in done.output
    figures = json.loads(Path("figures.json").read_text())
    assert [row["accept_length"] for row in figures["loads"]] == [1.5, 1.5] and figures["evaluate"] == 1.4
    for wrong in (["--server", "ollama"], ["--in-flight", "many"]):
        assert isinstance(CliRunner().invoke(application(), ["bench-serve", *wrong]).exception, UsageError)
