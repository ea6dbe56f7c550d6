"""How fast the client of generate is, how fast its store, whether memory stays flat, and how good its estimate is.

    python benchmarks/generate.py [--quick] [--json]

The client runs against a server in a process of its own that answers at once with 200 tokens, beside a bare loop
with the same HTTP library and its own JSON that does nothing else: no retries, no store, no check of what came
back. `lean` is the same loop with orjson, as the client has it. Time is the processor's time of the client's
process, so that the server and the neighbours do not count.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Without this folder: its tokenize.py would stand for the module of the standard library that others import.
sys.path[:] = [str(HERE / "common"), *(folder for folder in sys.path if Path(folder).resolve() != HERE)]

import asyncio
import hashlib
import heapq
import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator

import aiohttp
import orjson
from figures import Figure, at_least, at_most, main

from draftmill.generate.converse import Told
from draftmill.generate.estimate import mean_length
from draftmill.generate.http import Http
from draftmill.generate.meter import Meter
from draftmill.generate.preflight import Wanted
from draftmill.generate.protocols import SGLang
from draftmill.generate.request import Answer, Request
from draftmill.generate.session import Row, Session, run
from draftmill.generate.settings import Engine, GenerateRun, Sampling
from draftmill.generate.store import Store

RATIO_LIMIT, STORE_LIMIT, ESTIMATE_LIMIT, MEMORY_LIMIT = 0.7, 5000, 0.1, 1.1
PROMPT_TOKENS, ANSWER_TOKENS, LIMIT = 300, 200, 2048

# The cheapest server there is: it looks for the end of a request and sends the same bytes.
SERVER = """
import asyncio, json, sys
ids = list(range(1000, 1200))
meta = {"finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 300, "completion_tokens": 200}
def framed(value):
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body
ANSWER = framed({"text": "word " * 200, "output_ids": ids, "meta_info": meta})
INFO = framed({"model_path": "benchmark"})
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""
    def data_received(self, data):
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\\r\\n\\r\\n")
            if not found:
                return
            place = head.find(b"Content-Length: ")
            length = int(head[place + 16 :].split(b"\\r\\n", 1)[0]) if place >= 0 else 0
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            self.transport.write(INFO if head.startswith(b"GET") else ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

# In a process of its own: its memory is then the client's alone.
MEMORY = """
import sys
sys.path.insert(0, {folder!r})
import generate as benchmark
print(benchmark.peak_after({url!r}, {prompts}))
"""


def requests(count: int) -> Iterator[Request]:
    """Prompts of 300 tokens, each another."""
    for i in range(count):
        key = hashlib.sha256(i.to_bytes(8, "big")).hexdigest()[:32]
        ids = [i & 0xFFFF, i >> 16, *range(100, 100 + PROMPT_TOKENS - 2)]
        yield Request(key=key, limit=LIMIT, prompt_ids=ids, messages=[])


def row(request: Request) -> Row:
    """A conversation of one question."""
    answer = yield request
    return Told(said=[], turns=[(0, request, answer, ())])


def ours(url: str, count: int, concurrency: int, store: Path) -> tuple[float, float]:
    """(seconds, processor seconds) of the whole client with its store."""
    settings = GenerateRun(urls=(url,), concurrency=concurrency)

    async def urls() -> tuple[str, ...]:
        return settings.urls

    client = Http(
        SGLang(Sampling(), (2,)),
        urls,
        Engine(name="sglang"),
        settings,
        target=Wanted(names=("benchmark",), context=LIMIT),
    )
    started, spent = time.perf_counter(), time.process_time()
    with Store(store) as answers:
        session = Session(client, answers, Meter(settings))
        run(session, (row(request) for request in requests(count)))
    assert session.counts["asked"] == count and not session.failures, session.counts
    return time.perf_counter() - started, time.process_time() - spent


def bare(url: str, count: int, concurrency: int, *, lean: bool = False) -> tuple[float, float]:
    """(seconds, processor seconds) of a loop that only sends and decodes; `lean`: with orjson."""
    wire = SGLang(Sampling(), (2,))

    async def work(http: aiohttp.ClientSession, waiting: Iterator[Request]) -> None:
        for request in waiting:
            payload = wire.payload(request, request.key, None)
            if not lean:
                async with http.post(url + "/generate", json=payload) as answer:
                    await answer.json()
                continue
            headers = {"Content-Type": "application/json"}
            async with http.post(url + "/generate", data=orjson.dumps(payload), headers=headers) as answer:
                orjson.loads(await answer.read())

    async def everything() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            waiting = requests(count)
            await asyncio.gather(*(work(http, waiting) for _ in range(concurrency)))

    started, spent = time.perf_counter(), time.process_time()
    asyncio.run(everything())
    return time.perf_counter() - started, time.process_time() - spent


def compare(url: str, count: int, concurrency: int, repeats: int, folder: Path) -> Figure:
    """The loops and the client side by side, the best of `repeats` each, by the processor's time."""
    loops, leans, clients = [], [], []
    for i in range(repeats):
        loops.append(bare(url, count, concurrency)[1])
        leans.append(bare(url, count, concurrency, lean=True)[1])
        clients.append(ours(url, count, concurrency, folder / f"{concurrency}-{i}.sqlite")[1])
    spent, loop, lean = min(clients), min(loops), min(leans)
    print(
        f"{concurrency} in flight: {count / spent:.0f} requests a second of the processor, "
        f"a bare loop {count / loop:.0f}, a lean one {count / lean:.0f}, {lean / spent:.2f} of it"
    )
    return at_least(f"client_at_{concurrency}", loop / spent, RATIO_LIMIT)


def peak_after(url: str, prompts: int) -> int:
    """Peak memory of a process that asked so many prompts, in KiB."""
    with tempfile.TemporaryDirectory() as folder:
        ours(url, prompts, 256, Path(folder) / "answers.sqlite")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory(url: str, few: int, many: int) -> float:
    """Peak memory after many prompts as a multiple of that after few."""
    peaks = []
    for prompts in (few, many):
        program = MEMORY.format(folder=str(Path(__file__).parent), url=url, prompts=prompts)
        done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]))
    print(f"memory: {peaks[0] >> 10} MiB after {few} prompts, {peaks[1] >> 10} MiB after {many}")
    return peaks[1] / peaks[0]


def store_rate(count: int, folder: Path) -> float:
    """Answers of 200 tokens committed in a second, 64 or a second's worth at a time."""
    ids = list(range(1000, 1000 + ANSWER_TOKENS))
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": ANSWER_TOKENS}
    answer = Answer(finish="stop", limit=LIMIT, engine="e", output_ids=ids, text="word " * 200, usage=usage)
    keys = [hashlib.sha256(i.to_bytes(8, "big")).hexdigest()[:32] for i in range(count)]
    started = time.perf_counter()
    with Store(folder / "store.sqlite") as store:
        for key in keys:
            store.put(key, answer)
    return count / (time.perf_counter() - started)


def estimates(runs: int) -> float:
    """The largest error of the mean answer length when a fifth of 10,000 log-normal answers is back (500 in flight)."""
    errors, naive_errors = [], []
    for seed in range(runs):
        draw = random.Random(seed)
        lengths = [min(draw.lognormvariate(6.5, 1.0), 16384.0) for _ in range(10_000)]
        finished, running = in_flight_at(lengths, 500, 0.2)
        truth = sum(lengths) / len(lengths)
        errors.append(abs(mean_length(finished, running, 16384.0) / truth - 1))
        naive_errors.append(abs(sum(finished) / len(finished) / truth - 1))
    print(
        f"mean length at a fifth of a run: off by at most {max(errors):.1%}; the mean of the finished ones by "
        f"{sum(naive_errors) / runs:.1%}, at most {max(naive_errors):.1%}"
    )
    return max(errors)


def in_flight_at(lengths: list[float], slots: int, share: float) -> tuple[list[float], list[float]]:
    """(finished lengths, lengths so far of those in flight) when a share of the answers is back; equal speeds."""
    waiting = iter(lengths)
    busy = [(next(waiting), 0.0) for _ in range(slots)]
    heapq.heapify(busy)
    finished: list[float] = []
    now = 0.0
    while len(finished) < share * len(lengths):
        now, begun = heapq.heappop(busy)
        finished.append(now - begun)
        heapq.heappush(busy, (now + next(waiting), now))
    return finished, [now - begun for _, begun in busy]


def measure(quick: bool) -> list[Figure]:
    """Every figure."""
    server = subprocess.Popen([sys.executable, "-P", "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    try:
        with tempfile.TemporaryDirectory() as name:
            count, repeats = (4000, 2) if quick else (20_000, 3)
            clients = [compare(url, count, in_flight, repeats, Path(name)) for in_flight in (16, 256, 2000)]
            growth = memory(url, *((5_000, 20_000) if quick else (50_000, 1_000_000)))
            stored = store_rate(20_000 if quick else 100_000, Path(name))
    finally:
        server.kill()
        server.communicate()
    error = estimates(10 if quick else 50)
    return [
        *clients,
        at_most("memory_growth", growth, MEMORY_LIMIT),
        at_least("store_answers_per_s", stored, STORE_LIMIT),
        at_most("estimated_length_error", error, ESTIMATE_LIMIT),
    ]


if __name__ == "__main__":
    main(__doc__, measure, "fewer prompts")
