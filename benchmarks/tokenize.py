"""How near the tokenize stage comes to the Rust tokenizer itself, and whether turns cost anything.

    python benchmarks/tokenize.py [--quick] [--json]

One process, one thread. The limit is `encode_batch_fast` on the same rendered text; beside it the stage end to end
(read, render, find spans, encode, mask, check, write), its parts, and SpecForge's preprocessing of the same
conversations. SpecForge comes from .deps/peers (requirements/peers.txt); without it its figures are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Without this folder: its tokenize.py would stand for the module of the standard library that others import.
sys.path[:] = [str(HERE / "common"), *(folder for folder in sys.path if Path(folder).resolve() != HERE)]

import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from figures import Figure, at_least, at_most, main

from draftmill.config import build
from draftmill.target import Renderer, Target, renderer
from draftmill.tokenize.mask import Mask
from draftmill.tokenize.stage import CHUNK_ROWS, Work

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".deps" / "peers"
SHARE_LIMIT, TURNS_LIMIT, PEER_LIMITS = 0.6, 1.15, {"chat": 3, "trajectories": 8}
SHAPES = ("chat", "trajectories")
TURNS = (2, 10, 50, 200)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run",
            "description": "Run a command in the repository and return what it prints.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
Message = dict[str, Any]


# -- conversations ---------------------------------------------------------------------------------


class Writer:
    """Writes conversations from the words of the project's own samples and documents."""

    def __init__(self, seed: int) -> None:
        files = [*sorted((ROOT / "data/samples").glob("*.json*")), *sorted((ROOT / "docs").glob("*.md"))]
        plain = [file.read_text(encoding="utf-8") for file in files if not file.name.endswith(".zst")]
        self._words = " ".join(plain).split()
        self._random = random.Random(seed)

    def text(self, words: int) -> str:
        """Some words as they follow each other somewhere."""
        start = self._random.randrange(max(1, len(self._words) - words))
        return " ".join(self._words[start : start + words])

    def between(self, low: int, high: int) -> str:
        """A text of so many words."""
        return self.text(self._random.randint(low, high))

    def conversation(self, shape: str) -> list[Message]:
        """A chat of 1 to 4 turns, or a trajectory of 5 to 15 calls."""
        if shape == "chat":
            return self.turns(2 * self._random.randint(1, 4))
        messages: list[Message] = [
            {"role": "system", "content": self.text(150)},
            {"role": "user", "content": self.between(80, 300)},
        ]
        for i in range(self._random.randint(5, 15)):
            call = {"name": "run", "arguments": {"command": self.between(5, 40)}}
            calls = [{"id": f"call_{i}", "type": "function", "function": call}]
            messages.append({"role": "assistant", "content": self.between(10, 60), "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": self.between(20, 300)})
        return [*messages, {"role": "assistant", "content": self.between(30, 120)}]

    def turns(self, count: int) -> list[Message]:
        """Questions and answers in turn, `count` messages."""
        return [
            {"role": "assistant", "content": self.between(60, 160)}
            if i % 2
            else {"role": "user", "content": self.between(10, 60)}
            for i in range(count)
        ]


def write_answers(path: Path, conversations: list[list[Message]], tools: Any) -> None:
    """The conversations as answers.parquet, without ids: all is rendered and encoded."""
    rows = []
    for number, messages in enumerate(conversations):
        positions = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        turns = [{"position": i, "origin": "dataset", "finish_reason": "stop", "flags": []} for i in positions]
        shown = {"conversation": json.dumps(messages), "tools": json.dumps(tools) if tools else None}
        rows.append({"id": f"{number:07}", **shown, "group": "g", "dedup": None, "turns": json.dumps(turns)})
    columns = ("id", "conversation", "tools", "group", "dedup", "turns")
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in columns])), path)


# -- measuring -------------------------------------------------------------------------------------


def spent(run: Callable[[], object]) -> float:
    """Seconds of the processor."""
    started = time.process_time()
    run()
    return time.process_time() - started


def chunks(items: list[Any]) -> Iterator[list[Any]]:
    """The chunks in which the stage works."""
    return (items[start : start + CHUNK_ROWS] for start in range(0, len(items), CHUNK_ROWS))


class Case:
    """Conversations of one shape under one renderer."""

    def __init__(self, shown: Renderer, conversations: list[list[Message]], tools: Any) -> None:
        self.renderer, self.conversations, self.tools = shown, conversations, tools
        self.texts = [shown.text(messages, tools, False) for messages in conversations]
        self.tokens = sum(map(len, self.limit()))

    def limit(self) -> list[list[int]]:
        """The whole texts through the tokenizer, and nothing else."""
        backend = self.renderer.encoder._first
        return [
            encoding.ids
            for chunk in chunks(self.texts)
            for encoding in backend.encode_batch_fast(chunk, add_special_tokens=False)
        ]

    def jinja(self) -> None:
        """One render of every conversation."""
        for messages in self.conversations:
            self.renderer.text(messages, self.tools, False)

    def spans(self) -> list[Any]:
        """All renders and the spans."""
        return [layout for messages in self.conversations for layout in self.renderer.rows(messages, self.tools)]

    def encode(self, layouts: list[Any]) -> None:
        """The pieces through the tokenizer."""
        for chunk in chunks(layouts):
            self.renderer.encoder.encode([piece for layout in chunk for piece in layout.pieces(False)])

    def measure(self, repeats: int) -> dict[str, float]:
        """The best of some runs of each, taken in turn, in tokens a second; parts as shares of the stage."""
        with tempfile.TemporaryDirectory() as folder:
            answers = Path(folder, "answers.parquet")
            write_answers(answers, self.conversations, self.tools)
            stage: Callable[[], None] = lambda: Work(self.renderer, Mask()).write(answers, Path(folder), {})  # noqa: E731
            layouts = self.spans()
            parts: dict[str, Callable[[], object]] = {
                "limit": self.limit,
                "stage": stage,
                "jinja": self.jinja,
                "spans": self.spans,
                "pieces": lambda: self.encode(layouts),
            }
            runs = [{name: spent(run) for name, run in parts.items()} for _ in range(repeats)]
        best = {name: min(run[name] for run in runs) for name in parts}
        rest = best["stage"] - best["spans"] - best["pieces"]
        shares = {name: best[name] / best["stage"] for name in ("jinja", "spans", "pieces")}
        speeds = {name: self.tokens / best[name] for name in ("limit", "stage")}
        return {**speeds, "share": best["limit"] / best["stage"], **shares, "rest": rest / best["stage"]}


def cost_by_turns(shown: Renderer, writer: Writer, tokens: int, repeats: int) -> dict[int, float]:
    """Seconds of the stage for a million tokens, by turns (questions with answers) a conversation.

    The same texts each time: the longest conversations, cut into shorter ones. Some 12,000 tokens of short ones go
    before them, so that the count of tokens by role, which wants 10,000, takes none of the longest a second time.
    """
    first = [writer.turns(4) for _ in range(25)]
    longest = [writer.turns(2 * TURNS[-1]) for _ in range(max(1, tokens // (300 * TURNS[-1])))]
    cases = {
        turns: Case(
            shown,
            [*first, *(chat[i : i + 2 * turns] for chat in longest for i in range(0, len(chat), 2 * turns))],
            None,
        )
        for turns in TURNS
    }
    with tempfile.TemporaryDirectory() as folder:
        for turns, case in cases.items():
            write_answers(Path(folder, f"{turns}.parquet"), case.conversations, None)

        def stage(turns: int) -> None:
            Work(shown, Mask()).write(Path(folder, f"{turns}.parquet"), Path(folder), {})

        runs = [{turns: spent(lambda t=turns: stage(t)) for turns in TURNS} for _ in range(repeats)]
    return {turns: 1e6 * min(run[turns] for run in runs) / cases[turns].tokens for turns in TURNS}


# -- the peer --------------------------------------------------------------------------------------

PEER_PROGRAM = """
import json, sys, time, torch
torch.set_num_threads(1)
from transformers import AutoTokenizer
from specforge.data.preprocessing import preprocess_conversations
from specforge.data.template import ChatTemplate
folder, file, template = sys.argv[1:4]
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.chat_template = open(template).read()
rows = json.load(open(file))
chosen = ChatTemplate(assistant_header="<|im_start|>assistant\\n", user_header="<|im_start|>user\\n",
                      system_prompt=None, end_of_turn_token="<|im_end|>\\n")
best = 1e9
for _ in range(int(sys.argv[4])):
    started = time.process_time()
    tokens = 0
    for row in rows:
        found = preprocess_conversations(tokenizer, [row["messages"]], chosen, max_length=1 << 20,
                                         **({"tools": [row["tools"]]} if row["tools"] else {}))
        tokens += sum(ids.numel() for ids in found["input_ids"])
    best = min(best, time.process_time() - started)
print(json.dumps({"tokens": tokens, "seconds": best}))
"""


def peer(case: Case, repeats: int) -> float | None:
    """Tokens a second of SpecForge's preprocessing on the same conversations; None where it is not installed."""
    if not (PEERS / "specforge").is_dir():
        return None
    template = str(case.renderer.target.chat_template)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        file.write_text(json.dumps([{"messages": m, "tools": case.tools} for m in case.conversations]))
        command = [
            sys.executable,
            "-P",
            "-c",
            PEER_PROGRAM,
            str(case.renderer.folder),
            str(file),
            template,
            str(repeats),
        ]
        environment = {**os.environ, "PYTHONPATH": str(PEERS), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"SpecForge failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    measured = json.loads(done.stdout.splitlines()[-1])
    return float(measured["tokens"] / measured["seconds"])


# -- the report ------------------------------------------------------------------------------------


def load(name: str) -> Renderer:
    """The renderer of a file of conf/target."""
    loaded = yaml.safe_load((ROOT / f"conf/target/{name}.yaml").read_text(encoding="utf-8"))
    loaded |= {"template_digest": None, "max_seq_len": 1 << 20}
    return renderer(build(Target, loaded, file=name, key="target"))


def measure(quick: bool) -> list[Figure]:
    """Everything that is measured."""
    os.chdir(ROOT)
    shown, writer = load("smollm2_135m"), Writer(0)
    rows, repeats = (160, 4) if quick else (1000, 5)
    figures: list[Figure] = []
    for shape in SHAPES:
        tools = TOOLS if shape == "trajectories" else None
        conversations = [writer.conversation(shape) for _ in range(rows if tools is None else rows // 4)]
        for way in ("generation", "marks"):
            shown.finder.way = way
            case = Case(shown, conversations, tools)
            found = case.measure(repeats)
            describe(f"{shape} by {way}", found)
            figures.append(at_least(f"{shape}_by_{way}", found["share"], SHARE_LIMIT))
            if way == "generation":
                figures += against_peer(shape, case, found["stage"], 1 if quick else 2)
    shown.finder.way = "generation"
    costs = cost_by_turns(shown, writer, *((180_000, 4) if quick else (900_000, 5)))
    print(
        "seconds for a million tokens by turns: " + ", ".join(f"{turns}: {cost:.2f}" for turns, cost in costs.items())
    )
    return [*figures, at_most("cost_by_turns", max(costs.values()) / min(costs.values()), TURNS_LIMIT)]


def describe(name: str, found: dict[str, float]) -> None:
    """Where the stage's time goes."""
    print(f"{name}: {found['stage'] / 1e3:.0f}k tokens/s, the tokenizer alone {found['limit'] / 1e3:.0f}k")
    where = ", ".join(f"{part} {found[part]:.0%}" for part in ("pieces", "spans", "rest"))
    print(f"  the stage's time: {where}; one Jinja render {found['jinja']:.0%}")


def against_peer(shape: str, case: Case, ours: float, repeats: int) -> list[Figure]:
    """How many times SpecForge's rate the stage reaches; nothing where SpecForge is not installed."""
    theirs = peer(case, repeats)
    if theirs is None:
        return []
    print(f"  SpecForge {theirs / 1e3:.1f}k tokens/s")
    return [at_least(f"{shape}_of_specforge", ours / theirs, PEER_LIMITS[shape])]


if __name__ == "__main__":
    main(__doc__, measure, "fewer rows and repeats")
