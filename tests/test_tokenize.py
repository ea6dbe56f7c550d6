"""The tokenize stage on real files: ids as served, ids from text, masks, limits, counters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import load_target

from draftmill import config
from draftmill.errors import ConfigError, DataError
from draftmill.target import Renderer, Target, renderer
from draftmill.tokenize import Mask, build, pieces
from draftmill.tokenize.limits import fit
from draftmill.tokenize.rows import TokenRow, TokenSpan

ANSWERS = pa.schema(
    [(name, pa.string()) for name in ("id", "conversation", "tools", "group", "dedup", "meta", "turns")]
    + [(name, pa.list_(pa.list_(pa.int32()))) for name in ("prompt_ids", "output_ids")]
)
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def answer(
    identity: str,
    messages: Sequence[Message],
    ids: Sequence[tuple[list[int], list[int]]] | None = None,
    tools: Any = None,
    generated: Sequence[int] = (),
) -> dict[str, Any]:
    """A row of answers.parquet; `generated` are the positions that the target wrote."""
    origins = {True: "generated", False: "dataset"}
    turns = [
        {"position": i, "origin": origins[i in generated], "finish_reason": "stop", "usage": {}, "flags": []}
        for i, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    return {
        "id": identity,
        "conversation": json.dumps(list(messages)),
        "tools": tools and json.dumps(tools),
        "group": f"g{identity}",
        "dedup": None,
        "meta": None,
        "turns": json.dumps(turns),
        "prompt_ids": ids and [prompt for prompt, _ in ids],
        "output_ids": ids and [output for _, output in ids],
    }


class Project:
    """A project folder with one answered dataset."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.renderer = folder, renderer(target)
        self.target = {"name": "t", "source": {"path": str(target.source.path)}, "reasoning": {}}
        self.target["chat_template"] = target.chat_template

    def run(self, rows: Sequence[dict[str, Any]], mask: Any = "assistant", **target: Any) -> dict[str, Any]:
        """Write answers and params, build, and return metrics.json."""
        answers = self.folder / "build/generate/d/answers.parquet"
        answers.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(rows), ANSWERS), answers)
        params = {"target": self.target | target, "datasets": {"d": {"mask": mask, "schema": {}}}}
        (self.folder / "params.yaml").write_text(yaml.safe_dump(params))
        config._load.cache_clear()
        build("d")
        return json.loads((self.folder / "build/tokenize/d/metrics.json").read_text())

    def table(self, name: str) -> list[dict[str, Any]]:
        return pq.read_table(self.folder / f"build/tokenize/d/{name}.parquet").to_pylist()

    def trained(self) -> dict[str, list[str]]:
        """Row id -> the trainable texts."""
        masks = {row["id"]: [(run["start"], run["length"]) for run in row["loss_mask"]] for row in self.table("mask")}
        return {
            row["id"]: [t for t, trains in pieces(self.renderer, row["input_ids"], masks[row["id"]]) if trains]
            for row in self.table("tokens")
        }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Target) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, tiny_target)


CHAT = [user("hi"), says("hello"), user("more"), says("bye")]


def test_text_rows_train_every_answer_and_its_end_token(project: Project) -> None:
    metrics = project.run([answer("a", CHAT), answer("b", [user("x"), says("y")])])
    assert project.trained() == {"a": ["hello<|im_end|>", "bye<|im_end|>"], "b": ["y<|im_end|>"]}
    assert metrics["rows_in"] == metrics["rows_out"] == 2 and metrics["dropped"] == {}
    assert metrics["turns"] == metrics["turns_from_dataset"] == 3 and metrics["trainable_tokens"] == 6 + 4 + 2
    assert metrics["tokens_by_role"].keys() == {"assistant", "user", "template"}
    assert (
        metrics["tokens_by_role"]["assistant"] == len("hellobyey")
        and sum(metrics["tokens_by_role"].values()) == metrics["tokens"]
    )
    first = project.table("tokens")[0]
    assert project.renderer.decode(first["input_ids"]) == project.renderer.text(CHAT, None, False)
    assert first["n_prompt_tokens"] + first["n_response_tokens"] == len(first["input_ids"])
    assert [span["turn"] for span in first["spans"]] == [1, 3] and first["group"] == "ga"
    assert (project.folder / "build/tokenize/d/rejects.jsonl").read_bytes() == b""


def test_equal_builds_give_equal_bytes(project: Project) -> None:
    files = ("tokens.parquet", "mask.parquet", "metrics.json", "rejects.jsonl")
    read: Callable[[], list[bytes]] = lambda: [  # noqa: E731
        (project.folder / "build/tokenize/d" / file).read_bytes() for file in files
    ]
    project.run([answer("a", CHAT)])
    before = read()
    project.run([answer("a", CHAT)])
    assert read() == before


def test_ids_from_the_server_are_used_as_they_are(project: Project) -> None:
    shown = project.renderer
    prompt = shown.prompt_ids(CHAT[:1], None)
    output = [*shown.encode("hel"), *shown.encode("lo"), *shown.eos_ids]
    second = [*prompt, *output, *shown.encode("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")]
    last = [7, 8, 9, *shown.eos_ids]  # no valid text: what counts is what the target wrote
    metrics = project.run([answer("a", CHAT, [(prompt, output), (second, last)], generated=[1, 3])])
    (row,) = project.table("tokens")
    assert row["input_ids"] == second + last
    assert [(s["start"], s["end"], s["origin"]) for s in row["spans"]] == [
        (len(prompt), len(prompt) + len(output), "generated"),
        (len(second), len(second) + len(last), "generated"),
    ]
    assert metrics["turns_served_as_ids"] == 2


def test_a_prompt_that_does_not_extend_the_last_answer_starts_a_row(project: Project) -> None:
    first, second = ([1, 2, 3], [4, 5]), ([1, 2, 9, 6], [7])
    metrics = project.run([answer("a", CHAT, [first, second], generated=[1, 3])])
    rows = project.table("tokens")
    assert [(row["id"], row["input_ids"]) for row in rows] == [("a", [1, 2, 9, 6, 7]), ("a#1", [1, 2, 3, 4, 5])]
    assert [[span["turn"] for span in row["spans"]] for row in rows] == [[3], [1]]
    assert metrics["fan_out_rows"] == 1 and metrics["rows_out"] == 1 and metrics["rows_written"] == 2


def test_recorded_turns_before_a_served_one_have_spans(project: Project) -> None:
    prompt = project.renderer.prompt_ids(CHAT[:3], None)
    served = answer("a", CHAT, [(prompt, [5, *project.renderer.eos_ids])], generated=[3])
    project.run([served])
    (row,) = project.table("tokens")
    assert [(span["turn"], span["origin"]) for span in row["spans"]] == [(1, "dataset"), (3, "generated")]
    assert project.trained()["a"][0] == "hello<|im_end|>"
    project.run([served], mask="generated")
    assert len(project.trained()["a"]) == 1
    other = answer("a", CHAT, [([1, 2, 3], [4])], generated=[3])
    assert project.run([other])["recorded_turns_not_found"] == 1


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("assistant", ["hello<|im_end|>", "bye<|im_end|>"]),
        ("last_assistant", ["bye<|im_end|>"]),
        ("generated", ["bye<|im_end|>"]),
        ({"flag": "weight"}, ["hello<|im_end|>"]),
    ],
)
def test_mask_policies(project: Project, mask: Any, expected: list[str]) -> None:
    chat = [{"role": "system", "content": "s"}, user("hi"), says("hello", flag=0.5), user("more"), says("bye", flag=0)]
    project.run([answer("a", chat, generated=[4])], mask)
    assert project.trained() == {"a": expected}
    flags = [span["flag"] for span in project.table("tokens")[0]["spans"]]
    assert flags == [0.5, 0.0]


def test_all_and_non_system(project: Project) -> None:
    chat = [{"role": "system", "content": "rules"}, *CHAT]
    text = project.renderer.text(chat, None, False)
    project.run([answer("a", chat)], "all")
    assert project.trained() == {"a": [text]}
    project.run([answer("a", chat)], "non_system")
    assert project.trained() == {"a": [text.removeprefix("<|im_start|>system\nrules<|im_end|>\n")]}


def test_another_mask_leaves_the_tokens_as_they_are(project: Project) -> None:
    tokens = project.folder / "build/tokenize/d/tokens.parquet"
    seen = set()
    for mask in ("assistant", "last_assistant", "all", "non_system", "generated"):
        project.run([answer("a", CHAT, generated=[1])], mask)
        seen.add(tokens.read_bytes())
    assert len(seen) == 1


def test_an_unknown_policy_names_the_file_and_the_nearest(project: Project) -> None:
    with pytest.raises(ConfigError, match=r"conf/dataset/d.yaml: mask(.|\n)*did you mean 'assistant'"):
        project.run([answer("a", CHAT)], "asistant")


def test_empty_masks_are_counted_and_stop_the_stage_if_they_are_many(project: Project) -> None:
    good, flagged = [answer(f"a{i}", CHAT, generated=[1]) for i in range(9)], answer("z", CHAT)
    assert project.run([*good, flagged], "generated")["empty_mask"] == 1
    assert [row["n_trainable"] for row in project.table("mask")][-1] == 0
    with pytest.raises(DataError, match="2 of 3 rows have no token to train"):
        project.run([answer("a", CHAT, generated=[1]), answer("b", CHAT), answer("c", CHAT)], "generated")


def test_long_rows_are_rejected_cut_or_windowed_and_counted(project: Project) -> None:
    long = [user("hi"), says("a" * 50), user("more"), says("b" * 200)]
    short = answer("s", [user("x"), says("y")])
    metrics = project.run([short, answer("z", long)], max_seq_len=150)
    assert metrics["dropped"] == {"too_long": 1} and metrics["rows_out"] == 1
    reject = json.loads((project.folder / "build/tokenize/d/rejects.jsonl").read_text())
    assert reject["id"] == "z" and "max_seq_len 150" in reject["excerpt"]
    metrics = project.run([short, answer("z", long)], max_seq_len=150, over_length="cut")
    assert project.trained()["z"] == ["a" * 50 + "<|im_end|>"] and metrics["turns_left_out"] == 1
    metrics = project.run([short, answer("z", long)], max_seq_len=230, over_length="window")
    assert project.trained()["z"] == ["a" * 50 + "<|im_end|>"] and project.trained()["z#1"] == [
        "b" * 200 + "<|im_end|>"
    ]
    assert metrics["split_by_length"] == 1 and all(len(r["input_ids"]) <= 230 for r in project.table("tokens"))


def test_windows_cover_every_turn_once() -> None:
    spans = [TokenSpan(turn=i, start=10 * i + 4, end=10 * i + 9, origin="dataset") for i in range(9)]
    row = TokenRow(input_ids=list(range(95)), spans=spans)
    windows = fit(row, 30, "window")
    covered = [window.input_ids[span.start] for window in windows for span in window.spans]
    assert covered == [span.start for span in spans]
    assert all(len(window.input_ids) <= 30 for window in windows)
    assert fit(row, 30, "reject") == [] and len(fit(row, 30, "cut")[0].input_ids) == 29
    assert fit(row, 3, "window") == fit(row, 3, "cut") == []


def test_a_template_that_refuses_a_row_is_a_counted_reject(project: Project) -> None:
    template = project.folder / "strict.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}"
        "{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    rows = [answer("a", CHAT), answer("b", [user("bad"), says("x")])]
    metrics = project.run(rows, chat_template=str(template))
    assert metrics["dropped"] == {"template": 1}
    assert project.trained() == {"a": ["hello<|im_end|>", "bye<|im_end|>"]}
    with pytest.raises(DataError, match=r"no row could be tokenized(.|\n)*no bad words"):
        project.run(rows[1:], chat_template=str(template))


def test_text_that_is_not_unicode_is_a_counted_reject(project: Project) -> None:
    bad = answer("b", [user("x"), says("y")])
    bad["conversation"] = json.dumps([user("\ud800"), says("y")])
    assert project.run([answer("a", CHAT), bad])["dropped"] == {"template": 1}


def test_missing_answers_are_a_clear_error(project: Project) -> None:
    project.run([answer("a", CHAT)])
    (project.folder / "build/generate/d/answers.parquet").unlink()
    with pytest.raises(Exception, match="not there yet"):
        build("d")


def test_pieces_join_to_the_text(tiny_target: Target) -> None:
    shown: Renderer = renderer(tiny_target)
    ids = shown.encode("abcdef")
    assert pieces(shown, ids, [(1, 2), (4, 1)]) == [("a", False), ("bc", True), ("d", False), ("e", True), ("f", False)]
    assert pieces(shown, ids, []) == [("abcdef", False)]


def test_reading_a_mask() -> None:
    assert Mask.read("all", "d").policy == "all" and Mask.read({"flag": "x"}, "d").policy == "flag"
    for wrong in (None, {"flags": "x"}, ["all"], "flag"):
        with pytest.raises(ConfigError):
            Mask.read(wrong, "d")
    assert load_target("tiny").over_length == "reject"


def test_the_stage_starts_without_torch_and_transformers() -> None:
    program = (
        "import sys, draftmill.tokenize.stage, draftmill.cli.tokens\n"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
