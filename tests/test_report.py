"""The report as a person meets it: a real browser, no network, every chart drawn, data escaped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from draftmill.errors import BuildError
from draftmill.report import write_report
from draftmill.report.page import pieces

HOSTILE = "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>\x1b[31m"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def dataset(**source: Any) -> dict[str, Any]:
    return {
        "source": source,
        "schema": {},
        "quota": 10,
        "answer": "regenerate",
        "answer_resolved": "regenerate",
        "mask": "assistant",
        "licence": "MIT",
        "tags": ["chat"],
    }


def evaluated(value: float) -> dict[str, Any]:
    return {
        "accept_length": value,
        "accept_length_low": value - 0.1,
        "accept_length_high": value + 0.1,
        "accept_length_untrained": 1.01,
        "accept_length_prompt_lookup": 1.2,
        "acceptance": [0.3, 0.1, 0.02],
        "prompts": 4,
        "speedup": 1.1,
        "lossless": True,
    }


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Any) -> Path:
    """A finished build of two datasets, as the stages leave it; `chat` is read from its sample."""
    import dataclasses

    monkeypatch.chdir(tmp_path)
    from draftmill.target import renderer

    tokenizer = renderer(tiny_target)
    sections = {name: {} for name in ("engine", "sampling", "states", "blend", "evaluate")}
    params = {
        "conf_digest": "ab" * 32,
        "dataset_names": ["chat", "tools"],
        "source_mode": "sample",
        "seed": 0,
        "target": dataclasses.asdict(tiny_target),
        "drafter": {"kind": "eagle3"},
        "datasets": {"chat": dataset(hub="a/b", sample="data/samples/chat.jsonl"), "tools": dataset(hub="c/<d>")},
        **sections,
    }
    write(tmp_path / "params.yaml", yaml.safe_dump(params))
    per = {}
    for name in ("chat", "tools"):
        write(tmp_path / f"build/extract/{name}/metrics.json", {"rows_in": 9, "rows_out": 6, "dropped": {"where": 3}})
        write(tmp_path / f"build/generate/{name}/metrics.json", {"rows_in": 6, "rows_out": 5, "dropped": {"quota": 1}})
        write(tmp_path / f"build/tokenize/{name}/metrics.json", {"rows_in": 5, "rows_out": 5, "dropped": {}})
        ids, answer = tokenizer.encode(HOSTILE), tokenizer.encode("yes <b>")
        span = {"turn": 1, "start": len(ids), "end": len(ids + answer), "origin": "generated"}
        tokens = {
            "id": ["r1"],
            "input_ids": [ids + answer],
            "spans": [[span]],
            "n_prompt_tokens": [len(ids)],
            "n_response_tokens": [len(answer)],
        }
        folder = tmp_path / "build/tokenize" / name
        pq.write_table(pa.table(tokens), folder / "tokens.parquet")
        run = {"start": len(ids), "length": len(answer)}
        pq.write_table(pa.table({"id": ["r1"], "loss_mask": [[run]]}), folder / "mask.parquet")
        per[name] = {"available": 5, "requested": 5, "taken": 4, "heldout": 1, "share_rows": 0.5, "share_tokens": 0.5}
    blend = {"rows_in": 10, "rows_out": 10, "dropped": {}, "datasets": per, "train": {"rows": 8}}
    write(tmp_path / "build/blend/metrics.json", blend)
    write(tmp_path / "build/evaluate/metrics.json", evaluated(1.4) | {"datasets": {"chat": evaluated(1.5)}})
    for name in ("loss", "accept_0"):
        lines = "".join(f"{step}\t{1 / (step + 1)}\n" for step in range(5))
        write(tmp_path / f"build/train/metrics/plots/metrics/train/{name}.tsv", f"step\t{name}\n{lines}")
    return tmp_path


@pytest.fixture
def browser_page(workspace: Path) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import sync_playwright

    page_file = write_report(workspace / "build" / "report")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(offline=True, viewport={"width": 390, "height": 844}, color_scheme="dark")
        page = context.new_page()
        page.problems = []
        page.on("console", lambda line: page.problems.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.problems.append(request.url) if "http" in request.url[:5] else None)
        page.goto(page_file.absolute().as_uri())
        yield page
        browser.close()


def test_the_page_draws_every_chart_without_errors_or_network(browser_page: Any) -> None:
    charts = browser_page.locator(".js-plotly-plot")
    assert charts.count() == 9
    for i in range(charts.count()):
        assert charts.nth(i).locator("svg.main-svg").count() > 0
        assert charts.nth(i).locator(".point, .points path, .lines path, .bars path").count() > 0, i
    assert browser_page.problems == []


def test_the_page_fits_a_phone_and_the_keyboard_reaches_it(browser_page: Any) -> None:
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= 390
    browser_page.keyboard.press("Tab")
    assert browser_page.evaluate("document.activeElement.tagName") == "A"
    figures = browser_page.locator("figure")
    assert all(figures.nth(i).get_attribute("tabindex") == "0" for i in range(figures.count()))


def test_charts_follow_the_dark_page(browser_page: Any) -> None:
    ink = browser_page.evaluate("document.querySelector('.js-plotly-plot').layout.font.color")
    browser_page.emulate_media(color_scheme="light")
    assert ink == "#e7eaee"
    browser_page.wait_for_function("document.querySelector('.js-plotly-plot').layout.font.color === '#1d2430'")


def test_rows_are_data_and_trainable_tokens_are_marked(browser_page: Any) -> None:
    assert browser_page.evaluate("window.stolen") is None
    row = browser_page.locator("pre.row").first
    assert row.locator("mark").all_inner_texts() == ["yes <b>"]
    assert "<script>" in row.inner_text()
    assert "\\x1b[31m" in row.inner_text()


def test_the_page_says_what_it_was_built_from(browser_page: Any) -> None:
    assert "sample data: 1 of 2 datasets" in browser_page.locator(".banner").inner_text()
    lineage = browser_page.locator("section", has=browser_page.locator("#lineage")).inner_text()
    assert "data/samples/chat.jsonl" in lineage
    assert "c/<d>" in lineage
    assert "not pinned" in lineage
    assert "1.40" in browser_page.locator("#result").inner_text()


def test_the_model_card_warns_of_sample_data(workspace: Path) -> None:
    write_report(workspace / "build" / "report")
    card = (workspace / "build/report/model_card.md").read_text()
    assert "**Sample data**: 1 of these datasets" in card
    assert "| chat | 1.50 | 1.40 | 1.60 | 1.01 | 1.20 | 4 |" in card


def test_a_build_that_was_not_evaluated_is_one_clear_error(workspace: Path) -> None:
    (workspace / "build/evaluate/metrics.json").unlink()
    with pytest.raises(BuildError, match="dvc repro evaluate"):
        write_report(workspace / "build" / "report")


def test_pieces_cut_where_the_mask_changes() -> None:
    cut = pieces([1, 2, 3, 4, 5], [{"start": 1, "length": 2}, {"start": 4, "length": 1}], lambda ids: str(list(ids)))
    assert [(piece.text, piece.trainable) for piece in cut] == [
        ("[1]", False),
        ("[2, 3]", True),
        ("[4]", False),
        ("[5]", True),
    ]
