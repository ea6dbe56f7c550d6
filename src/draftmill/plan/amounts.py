"""How much each dataset would ask, and what that takes; from earlier builds where there are any, else from rates.

Rows come from extract's counters, tokens from tokenize's. For a dataset that was not extracted yet, the rows of small
files here are counted, which extract will not exceed; for others there is only its quota. Rows answered before, by
the same target and sampling, are not asked again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftmill import pipeline
from draftmill.compose import tracked
from draftmill.config import build
from draftmill.errors import DataError
from draftmill.generate.quota import parse
from draftmill.generate.settings import Engine, Sampling
from draftmill.hidden_states import States
from draftmill.plan import Rates
from draftmill.target import Target, shape
from draftmill.workspace import BUILD, keep

COUNTED_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """One dataset's estimate; `rows` and `available` are None where only extract will know, `is_bound` what it reads.

    `requests` are those not answered before. Tokens are of all rows for the states, of the new requests for the rest.
    """

    dataset: str
    available: int | None
    is_bound: bool
    rows: int | None
    requests: int
    prompt_tokens: int
    answer_tokens: int
    states_tokens: int
    state_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Total:
    """The sums, and what they take: dollars are None for an engine without prices."""

    requests: int
    dollars: float | None
    answer_hours: float
    state_hours: float
    state_bytes: int
    free_bytes: int


def estimate(values: Mapping[str, Any]) -> tuple[list[Amount], Total]:
    """The estimates of every dataset that is answered, and their total, for a composed configuration."""
    target = build(Target, values["target"], file="conf/target", key="")
    states = build(States, values["states"], file="conf/states", key="")
    rates = build(Rates, values["run"]["plan"], file="conf/run", key="run.plan")
    form = shape(target)
    per_token = states.bytes_per_token(form.layers, form.hidden_size)
    locked = pipeline.locked("generate")
    amounts = [_amount(name, values, rates, per_token, locked) for name in values["answered"]]
    return amounts, _total(amounts, values, rates)


def _amount(name: str, values: Mapping[str, Any], rates: Rates, per_token: int, locked: Mapping[str, Any]) -> Amount:
    declared = values["datasets"][name]
    extracted = _metrics("extract", name).get("rows_out")
    available = _at_most(name, values) if extracted is None else extracted
    rows = _wanted(declared["quota"], available, values.get("quota_cap"))
    recorded = declared["answer_resolved"] == "dataset"
    requests = 0 if recorded or rows is None else max(0, rows - _answered(name, values, locked))
    prompt, answer = _tokens_per_row(name, values, rates)
    return Amount(
        dataset=name,
        available=available,
        is_bound=extracted is None,
        rows=rows,
        requests=requests,
        prompt_tokens=round(requests * prompt),
        answer_tokens=round(requests * answer),
        states_tokens=round((rows or 0) * (prompt + answer)),
        state_bytes=round((rows or 0) * (prompt + answer) * per_token),
    )


def _at_most(name: str, values: Mapping[str, Any]) -> int | None:
    """The rows of a dataset's files, if they are here and read in about a second."""
    from draftmill.extract.readers import Reject, read
    from draftmill.extract.readers.files import resolve
    from draftmill.extract.source import Source, listed

    file, declared = f"conf/dataset/{name}.yaml", values["datasets"][name]["source"]
    mode: Literal["sample", "real"] = "sample" if values["source_mode"] == "sample" else "real"
    source = build(Source, declared, file=file, key="source").pick(mode)
    files = [] if source.hub else resolve(listed(source.files or source.sample))
    if not files or sum(Path(path).stat().st_size for path in files) > COUNTED_BYTES:
        return None
    with suppress(DataError):  # extract says what is wrong with them
        return sum(not isinstance(item.value, Reject) for item in read(source))
    return None


def _wanted(quota: Any, available: int | None, cap: int | None) -> int | None:
    parsed = parse(quota, file="", key="quota")
    rows = parsed.rows if available is None else parsed.rows_of(available)
    if rows is None:
        return cap
    return rows if cap is None else min(rows, cap)


def _answered(name: str, values: Mapping[str, Any], locked: Mapping[str, Any]) -> int:
    """Rows in the last build's answers, if target, engine and sampling are still the same."""
    recorded = locked.get(f"generate@{name}", {}).get("params", {}).get(tracked.file(name).as_posix(), {})
    same = recorded.get("asking") == tracked.of(name, values)["asking"]
    return int(_metrics("generate", name).get("rows_out", 0)) if same else 0


def _tokens_per_row(name: str, values: Mapping[str, Any], rates: Rates) -> tuple[float, float]:
    """Mean prompt and answer tokens of a row: as tokenized before, else from the rates and the answer limit."""
    path = BUILD / "tokenize" / name / "tokens.parquet"
    if path.exists():
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=["n_prompt_tokens", "n_response_tokens"])
        if table.num_rows:
            prompt, answer = (float(pc.mean(table[column]).as_py()) for column in table.column_names)
            return prompt, answer
    sampling = build(Sampling, values["sampling"], file="conf/sampling", key="")
    return float(rates.prompt_tokens), float(sampling.max_new_tokens)


def _total(amounts: list[Amount], values: Mapping[str, Any], rates: Rates) -> Total:
    def summed(key: str) -> int:
        return sum(getattr(amount, key) for amount in amounts)

    prices = build(Engine, values["engine"], file="conf/engine", key="").prices
    dollars = None
    if prices is not None:
        dollars = (summed("prompt_tokens") * prices.prompt + summed("answer_tokens") * prices.completion) / 1e6
    return Total(
        requests=summed("requests"),
        dollars=dollars,
        answer_hours=summed("answer_tokens") / rates.answer_tokens_per_s / 3600,
        state_hours=summed("states_tokens") / rates.state_tokens_per_s / 3600,
        state_bytes=summed("state_bytes"),
        free_bytes=shutil.disk_usage(keep()).free,
    )


def _metrics(stage: str, name: str) -> dict[str, Any]:
    path = BUILD / stage / name / "metrics.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
