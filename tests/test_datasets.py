"""The seventeen declarations on their sample rows: which rows are kept, and why the others are not, counted by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from declared import ROOT, Extracted, declared, extract, roles, user_texts

from draftmill.errors import DataError
from draftmill.extract import validate
from draftmill.extract.declaration import from_map
from draftmill.extract.failures import check
from draftmill.extract.run import collected
from draftmill.target import Target, renderer
from draftmill.tokenize.mask import Mask
from draftmill.tokenize.rows import Answered, Tokenizer

SAMPLES = ROOT / "data" / "samples"

# name: (rows, kept, filtered, duplicates, rejected), as a person counts them in the files
COUNTED = {
    "agent_training": (30, 29, 0, 1, 0),
    "codefeedback": (30, 29, 0, 1, 0),
    "deepswe_kimi": (28, 26, 0, 0, 2),
    "glaive_fc": (27, 25, 0, 1, 1),
    "hermes_fc": (27, 25, 0, 1, 1),
    "infinity_instruct": (33, 29, 3, 1, 0),
    "kimi_k25_2000x": (28, 26, 0, 2, 0),
    "magicoder": (28, 26, 0, 1, 1),
    "metamath": (30, 28, 0, 2, 0),
    "mixture_of_thoughts": (28, 27, 0, 1, 0),
    "nemotron_v2": (29, 28, 0, 1, 0),
    "openthoughts": (27, 26, 0, 1, 0),
    "sharegpt": (32, 28, 0, 1, 3),
    "swe_agent": (25, 20, 4, 1, 0),
    "ultrachat": (29, 28, 0, 1, 0),
    "webinstruct_sub": (30, 27, 0, 1, 2),
    "wildclaw": (43, 17, 26, 0, 0),
}

# Number of the row in its file (from 1) for every rejected one.
REJECTED = {
    "deepswe_kimi": [27, 28],  # null conversation; null issue, so that no user turn is left
    "glaive_fc": [27],  # text before the first speaker
    "hermes_fc": [26],  # tools cut off in the middle
    "magicoder": [28],  # empty problem
    "sharegpt": [4, 8, 31],  # begins and ends with gpt; empty conversation; blanks only
    "webinstruct_sub": [7, 28],  # "N/A"; empty question
}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Extracted]:
    """Every dataset's sample, run once."""
    return {name: run(declared(name), tmp_path_factory.mktemp(name), name) for name in COUNTED}


def run(declaration: dict[str, Any], folder: Path, name: str) -> Extracted:
    declaration["source"]["sample"] = str(ROOT / declaration["source"]["sample"])
    return extract(declaration, folder, name, mode="sample")


def raw_rows(name: str) -> list[Any]:
    """The rows of a sample, read without draftmill."""
    path = next(SAMPLES.glob(f"{name}.*"))
    if path.suffix == ".parquet":
        rows: list[Any] = pq.read_table(path).to_pylist()
        return rows
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return json.loads(data) if path.suffix == ".json" else [json.loads(line) for line in data.splitlines()]


def test_the_seventeen_are_declared_with_samples_of_a_few_dozen_rows() -> None:
    names = sorted(path.stem for path in (ROOT / "conf" / "dataset").glob("*.yaml"))
    assert [name for name in names if declared(name).get("enabled", True)] == sorted(COUNTED)
    for name in COUNTED:
        assert 24 <= len(raw_rows(name)) == COUNTED[name][0] <= 60
        declaration = declared(name)
        assert declaration["description"] and declaration["licence"] and declaration["tags"]
        assert declaration["source"]["sample"].startswith(f"data/samples/{name}.")
        assert declaration["source"]["hub"].count("/") == 1
    suffixes = {"".join(next(SAMPLES.glob(f"{name}.*")).suffixes) for name in COUNTED}
    assert suffixes == {".parquet", ".json", ".jsonl", ".jsonl.zst"}


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "dataset").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_declaration_is_valid(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith(
        "# yaml-language-server: $schema=../schema/dataset.schema.json\n"
    )
    validate(path.stem, declared(path.stem))


@pytest.mark.parametrize("name", ["gsm8k_test", "humaneval", "mt_bench"])
def test_evaluation_sets_are_declared_and_left_out(name: str) -> None:
    declaration = declared(name)
    assert declaration["role"] == "evaluation" and declaration["enabled"] is False


@pytest.mark.parametrize("name", COUNTED)
def test_kept_and_dropped_rows_are_those_counted_by_hand(name: str, extracted: dict[str, Extracted]) -> None:
    result = extracted[name]
    assert result.funnel == COUNTED[name]
    assert len(result.records) == result.kept
    rejected = [entry.get("line", entry.get("row")) for entry in result.dropped if entry["reason"] != "duplicate"]
    assert sorted(rejected) == REJECTED.get(name, [])
    assert result.unseen == []
    assert result.yield_ >= declared(name)["schema"].get("expect", {}).get("yield", 0.99)


def test_prompts_differ_over_all_datasets_but_for_those_codefeedback_shares(extracted: dict[str, Extracted]) -> None:
    # wildclaw's requests of one task share their user turn by nature
    texts = {name: {tuple(user_texts(r)) for r in it.records} for name, it in extracted.items() if name != "wildclaw"}
    counts = Counter(text for found in texts.values() for text in found)
    assert [text for text, count in counts.items() if count > 1] != []
    assert {text for text, count in counts.items() if count > 1} == texts["magicoder"] & texts["codefeedback"]
    assert len(texts["magicoder"] & texts["codefeedback"]) == 4


def test_every_record_ends_where_the_target_writes(extracted: dict[str, Extracted]) -> None:
    for name, result in extracted.items():
        last = {"tool", "user"} if name == "wildclaw" else {"assistant", "user"} if name == "ultrachat" else {"user"}
        assert {roles(record)[-1] for record in result.records} <= last, name


# -- single datasets ------------------------------------------------------------------------------


def test_swe_agent_asks_the_first_user_turn_with_text(extracted: dict[str, Extracted]) -> None:
    rows = [row for row in raw_rows("swe_agent") if row["exit_status"] != "early_exit"]
    issues = {next(turn["text"] for turn in row["trajectory"] if turn["role"] == "user") for row in rows}
    result = extracted["swe_agent"]
    assert {user_texts(record)[0] for record in result.records} == issues and len(issues) == 20
    assert all(roles(record) == ["system", "user"] for record in result.records)
    assert all(record["messages"][0]["content"].startswith("SETTING:") for record in result.records)


def test_swe_agent_runs_of_one_issue_are_one_group(tmp_path: Path, extracted: dict[str, Extracted]) -> None:
    assert len({record["group"] for record in extracted["swe_agent"].records}) == 20
    declaration = declared("swe_agent")
    declaration["schema"] |= {"dedup": "none", "where": "@.instance_id == 'acme__calc-12'"}
    both = run(declaration, tmp_path, "swe_agent")
    assert len(both.records) == len({record["id"] for record in both.records}) == 2
    assert len({record["group"] for record in both.records}) == 1


def test_deepswe_for_a_kimi_target_keeps_every_assistant_turn_and_its_tool_output_stays_user(tmp_path: Path) -> None:
    declaration = declared("deepswe_kimi")
    assert declaration["answer"] == {"native_to": ["kimi-k2*"]} and declaration["mask"] == "assistant"
    declaration |= {"answer_resolved": "dataset", "keep_resolved": "full"}  # what composing resolves for such a target
    result = run(declaration, tmp_path, "deepswe_kimi")
    # besides the two bad rows, the run that broke off before the first answer
    assert result.funnel == (28, 25, 0, 0, 3) and result.yield_ >= 0.85
    rows = [row["messages"] for row in raw_rows("deepswe_kimi") if row["messages"]]
    written = {turns[1]["content"]: turns for turns in rows if len(turns) > 2 and turns[1]["content"]}
    for record in result.records:
        assert roles(record)[-1] == "assistant"
        source = [turn for turn in written[user_texts(record)[0]] if turn["content"]]
        if user_texts(record)[0].startswith("Fix the off-by-one"):
            continue  # two runs of one issue
        last = max(place for place, turn in enumerate(source) if turn["role"] == "assistant")
        assert [(m["role"], m["content"]) for m in record["messages"]] == [
            (turn["role"], turn["content"]) for turn in source[: last + 1]
        ]
    assert sum(roles(record).count("user") > 1 for record in result.records) > 10  # tool output


def test_deepswe_for_a_kimi_target_trains_every_assistant_turn_and_no_user_turn(
    tmp_path: Path, tiny_target: Target
) -> None:
    declaration = declared("deepswe_kimi") | {"answer_resolved": "dataset", "keep_resolved": "full"}
    records = run(declaration, tmp_path, "deepswe_kimi").records
    render = renderer(tiny_target)
    answered = [
        Answered(id=r["id"], messages=r["messages"], tools=None, group="", dedup=None, origins={}, served=None)
        for r in records
    ]
    mask = Mask.read(declaration["mask"], "deepswe_kimi")
    for result in Tokenizer(render).chunk(answered):
        [row] = result.rows
        runs = mask.runs(row, result.answered.last_turn, 0)
        trained = [render.decode(row.input_ids[start : start + length]) for start, length in runs]
        spoken = [m["content"] for m in result.answered.messages if m["role"] == "assistant"]
        assert trained == [f"{text}<|im_end|>" for text in spoken]
        assert sum(len(row.input_ids) for row in result.rows) > sum(length for _, length in runs)


def test_deepswe_groups_the_runs_of_one_issue(extracted: dict[str, Extracted]) -> None:
    runs = [r for r in extracted["deepswe_kimi"].records if user_texts(r)[0].startswith("Fix the off-by-one")]
    assert len(runs) == 2 and len({record["group"] for record in runs}) == 1


def test_agent_training_has_no_false_duplicates_from_the_shared_system_text(extracted: dict[str, Extracted]) -> None:
    result = extracted["agent_training"]
    systems = {record["messages"][0]["content"] for record in result.records}
    assert len(systems) == 1 and result.duplicates == 1
    coats = [record for record in result.records if user_texts(record) == ["Do I need a coat in Riga?"]]
    assert len(coats) == 2  # the same question with other tools is no duplicate
    assert result.max_same < 0.1


def test_taking_the_system_text_as_prompt_trips_the_alarm(tmp_path: Path) -> None:
    declaration = declared("agent_training")
    declaration["schema"] = {"prompt": "conversations[from=system].value"}
    assert run(declaration, tmp_path, "agent_training").max_same == 1.0
    parsed = from_map("agent_training", declaration, "conf/dataset/agent_training.yaml", "sample")
    with collected(parsed) as outcome, pytest.raises(DataError) as failure:
        check(outcome, parsed)
    message = str(failure.value)
    for part in (
        "conf/dataset/agent_training.yaml",
        "schema.prompt",
        "30 of 30 rows",
        "max_same",
        "You are an AI agent",
    ):
        assert part in message


def test_openthoughts_and_sharegpt_labels_mean_user_and_assistant(extracted: dict[str, Extracted]) -> None:
    thoughts = raw_rows("openthoughts")
    assert {turn["from"] for row in thoughts for turn in row["conversations"]} == {"user", "assistant"}
    asked = {row["conversations"][0]["value"] for row in thoughts}
    assert {user_texts(record)[0] for record in extracted["openthoughts"].records} == asked
    assert all(roles(record) == ["system", "user"] for record in extracted["openthoughts"].records)

    shared = extracted["sharegpt"]
    labels = {turn["from"] for row in raw_rows("sharegpt") for turn in row["conversations"]}
    assert labels == {"human", "user", "gpt", "chatgpt", "bing", "bard", "system"}
    assert shared.by_user_text("Translate 'good evening' into Spanish.")["messages"] == [
        {"role": "user", "content": "Translate 'good evening' into Spanish."}
    ]
    assert roles(shared.by_user_text("and how long do they live?")) == ["user", "assistant", "user"]
    limerick = shared.by_user_text("write a limerick about a dog")  # an empty turn followed
    assert roles(limerick) == ["user"]


def test_ultrachat_lets_the_target_answer_every_turn(extracted: dict[str, Extracted]) -> None:
    record = extracted["ultrachat"].by_user_text("How long does it take?")
    assert user_texts(record) == ["What can I cook with rice, eggs and a tomato?", "How long does it take?"]
    assert {record["id"] for record in extracted["ultrachat"].records} <= {
        row["prompt_id"] for row in raw_rows("ultrachat")
    }


def test_glaive_chats_are_split_at_speakers_and_give_their_functions(extracted: dict[str, Extracted]) -> None:
    result = extracted["glaive_fc"]
    record = result.by_user_text("And in yen?")
    assert roles(record) == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [spec["function"]["name"] for spec in record["tools"]] == ["convert_currency"]
    assert not record["messages"][0]["content"].startswith("SYSTEM:")
    assert not any("<|endoftext|>" in message["content"] for message in record["messages"])
    asked_twice = [r for r in result.records if user_texts(r) == ["Can you book a table for two?"]]
    assert len(asked_twice) == 2  # with different functions
    assert sum(record["tools"] is None for record in result.records) == 5
    two = result.by_user_text("Is it warm enough in Oslo to sit outside?")
    assert [spec["function"]["name"] for spec in two["tools"]] == ["get_weather", "set_light"]


@pytest.mark.parametrize("name", ["hermes_fc", "glaive_fc"])
def test_tools_leave_the_system_text(name: str, extracted: dict[str, Extracted]) -> None:
    for record in extracted[name].records:
        system = record["messages"][0]["content"]
        assert '"parameters"' not in system and "'parameters'" not in system


@pytest.mark.parametrize("name", ["hermes_fc", "wildclaw", "glaive_fc", "agent_training"])
def test_tools_reach_the_rendered_prompt_exactly_once(
    name: str, extracted: dict[str, Extracted], tiny_target: Target
) -> None:
    render = renderer(tiny_target)
    for record in extracted[name].records:
        text = render.text(record["messages"], record["tools"], True)
        # wildclaw's history may hold a call, whose name is followed by arguments instead
        for spec in record["tools"] or ():
            function = spec["function"]
            assert text.count(json.dumps(function["description"])) == 1
            assert text.count(f'"name": "{function["name"]}", "description"') == 1


def test_hermes_tools_come_out_as_they_went_in(extracted: dict[str, Extracted]) -> None:
    rows = {row["id"]: row for row in raw_rows("hermes_fc")}
    for record in extracted["hermes_fc"].records:
        text = rows[record["id"]]["tools"]
        assert record["tools"] == (yaml.safe_load(text) if text.startswith("[{'") else json.loads(text))
    tip = extracted["hermes_fc"].by_user_text("The bill was 62.50. Work out a tip of 12 percent.")
    assert tip["tools"][0]["function"]["parameters"]["properties"]["percent"] == {"type": "number", "default": 0.15}


def test_wildclaw_takes_every_answered_request_as_it_was_made(extracted: dict[str, Extracted]) -> None:
    rows = raw_rows("wildclaw")
    answered = {row["request_id"] for row in rows if row["type"] == "response" and row["status_code"] == 200}
    requests = {row["request_id"]: row for row in rows if row["type"] == "request"}
    result = extracted["wildclaw"]
    assert {record["id"] for record in result.records} == answered and len(requests) == 22
    for record in result.records:
        body = requests[record["id"]]["body"]
        assert len(record["messages"]) == len(body["messages"])
        assert record["tools"] == body["tools"]
        for message, turn in zip(record["messages"], body["messages"], strict=True):
            content = turn["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content or [])
            assert message["content"] == text
            if turn.get("tool_calls"):
                arguments = json.loads(turn["tool_calls"][0]["function"]["arguments"])
                assert message["tool_calls"][0]["function"]["arguments"] == arguments
    tasks = {requests[record["id"]]["task_name"] for record in result.records}
    assert len({record["group"] for record in result.records}) == len(tasks) == 10


def test_infinity_takes_english_rows_with_ids_of_both_types(extracted: dict[str, Extracted]) -> None:
    ids = {record["id"] for record in extracted["infinity_instruct"].records}
    assert {"inf_0000", "5101"} <= ids
    wanted = {str(row["id"]) for row in raw_rows("infinity_instruct") if row["langdetect"] == "en"}
    assert ids < wanted and len(wanted - ids) == 1  # the duplicate


def test_nemotron_drops_empty_system_turns_only(extracted: dict[str, Extracted]) -> None:
    systems = [r["messages"][0]["content"] for r in extracted["nemotron_v2"].records if roles(r)[0] == "system"]
    assert sorted(systems) == ["Answer in one sentence.", "Use simple words.", "You are a calm and friendly helper."]
    assert Counter(record["meta"]["category"] for record in extracted["nemotron_v2"].records) == {
        "stem": 7, "chat": 7, "math": 6, "code": 6, "multilingual_de": 1, "multilingual_fr": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["metamath", "webinstruct_sub"])
def test_rephrasings_of_one_question_are_one_group(name: str, extracted: dict[str, Extracted]) -> None:
    rows, asked, source = raw_rows(name), *{
        "metamath": ("query", "original_question"), "webinstruct_sub": ("question", "orig_question"),
    }[name]  # fmt: skip
    originals = {row[asked]: row[source] for row in rows}
    pairs = {(originals[user_texts(record)[0]], record["group"]) for record in extracted[name].records}
    # a duplicate may stand for two originals of webinstruct_sub, hence the group of the row that stayed
    assert len({group for _, group in pairs}) == len({original for original, _ in pairs}) == len(pairs)
