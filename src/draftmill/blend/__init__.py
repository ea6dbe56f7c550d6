"""One training set from many datasets.

    tokens, masks, states of every dataset
      ─> rows         light columns only; rows with an empty mask go
      ─> holdout      by hash of the group key: the same prompt in two datasets falls on one side
      ─> duplicates   exact (dedup key) and near (MinHash), held-out rows first; contamination (n-grams)
      ─> allocate     how many of each dataset; pure, house-monotone
      ─> choose       which: a prefix of the hash rank
      ─> write        the seeded global shuffle on disk, memory bounded by a bucket

settings and `members` are in this file, which imports nothing heavy: composing the configuration needs them.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftmill.errors import ConfigError, did_you_mean

FILE = "conf/blend"
_SUFFIXES = {"k": 10**3, "M": 10**6, "B": 10**9}


def count(value: int | str) -> int:
    """A number of tokens: 5000000, "5M", "2.5M", "300k", "1B". Raises ValueError for anything else."""
    text = str(value).strip()
    scale = _SUFFIXES.get(text[-1:], 1)
    try:
        number = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        raise ValueError(f"'{value}' is not a count; write 5000000, 300k, 5M or 1B") from None
    if not math.isfinite(number) or number < 0 or number != int(number):
        raise ValueError(f"'{value}' is not a whole number of tokens, 0 or more")
    return int(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """So many rows, or so many trainable tokens; exactly one of them."""

    rows: int | None = None
    tokens: int | str | None = None

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.tokens is None):
            raise ValueError("needs exactly one of rows and tokens")
        if self.number < 0:
            raise ValueError(f"must be 0 or more, not {self.number}")

    @property
    def unit(self) -> Literal["rows", "tokens"]:
        """Which of the two it is."""
        return "tokens" if self.rows is None else "rows"

    @property
    def number(self) -> int:
        """How many."""
        return count(self.tokens or 0) if self.rows is None else self.rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How much the datasets that match give: `take` says a number, `share` a part of what takes leave of the size."""

    match: str | list[str]  # globs over dataset names, or tag:GLOB
    take: Amount | Literal["all"] | None = None
    share: float | None = None  # relative to the other shares: they are normalized
    temperature: float = 1.0  # within the rule, by available rows ^ (1/temperature): 1 in proportion, large is even

    def __post_init__(self) -> None:
        if (self.take is None) == (self.share is None):
            raise ValueError("needs exactly one of take and share")
        if self.share is not None and not 0 <= self.share < math.inf:
            raise ValueError(f"share must be 0 or more, not {self.share}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")

    @property
    def patterns(self) -> list[str]:
        """`match` as a list."""
        return [self.match] if isinstance(self.match, str) else self.match


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdout:
    """Rows kept from training for evaluate: those whose hashed group key is under `fraction`."""

    fraction: float = 0.02
    salt: str = "holdout"  # its own, so that neither seed nor dataset name moves a prompt across

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction must be at least 0 and below 1, not {self.fraction}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NearDuplicates:
    """Rows of different datasets whose user turns are alike: the dataset earlier in `priority` keeps its row."""

    threshold: float = 0.85  # of the Jaccard similarity that signatures estimate
    priority: list[str] = field(default_factory=list)  # patterns as in a rule; the rest follow by name

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be above 0 and at most 1, not {self.threshold}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Decontaminate:
    """Rows whose user turns share an n-gram of words with an evaluation dataset are dropped."""

    against: list[str]  # datasets with role: evaluation
    ngram: int = 13

    def __post_init__(self) -> None:
        if self.ngram < 1:
            raise ValueError(f"ngram must be at least 1, not {self.ngram}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """A whole blend; see docs/blends.md."""

    allocate: dict[str, Rule]
    size: Amount | Literal["scarcest"] | None = None
    max_repeat: int = 1  # a row is used at most this often
    holdout: Holdout = field(default_factory=Holdout)
    near_duplicates: NearDuplicates | None = None
    decontaminate: Decontaminate | None = None
    infeasible: Literal["stop", "clip"] = "stop"

    def __post_init__(self) -> None:
        if not self.allocate:
            raise ValueError("allocate has no rule; the simplest is  all: {match: '*', take: all}")
        if self.max_repeat < 1:
            raise ValueError(f"max_repeat must be at least 1, not {self.max_repeat}")
        shares = [name for name, rule in self.allocate.items() if rule.share is not None]
        if shares and self.size is None:
            raise ValueError(f"allocate.{shares[0]}.share is a part of size, and size is null; set it, or `scarcest`")
        if shares and not sum(self.allocate[name].share or 0 for name in shares) > 0:
            raise ValueError("the shares are all 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """What the patterns of a blend mean for the datasets there are."""

    rules: dict[str, list[str]]  # rule -> its datasets, by name
    priority: list[str]  # every trained dataset; the earlier keeps a duplicate
    against: list[str]  # evaluation datasets to decontaminate against


def members(blend: Blend, datasets: Mapping[str, Mapping[str, Any]]) -> Members:
    """Resolve names and tags. `datasets` is the section of params.yaml: name -> {enabled, role, tags, ...}.

    The first rule that matches a dataset takes it. Raises ConfigError for a rule that gets no dataset, and for
    an evaluation dataset that is not there.
    """
    there = {name: declared for name, declared in datasets.items() if declared.get("enabled", True)}
    tags = {
        name: list(declared.get("tags") or ())
        for name, declared in sorted(there.items())
        if declared.get("role", "train") == "train"
    }
    rules: dict[str, list[str]] = {}
    free = list(tags)
    for rule_name, rule in blend.allocate.items():
        rules[rule_name] = [name for name in free if _matches(name, tags[name], rule.patterns)]
        if not rules[rule_name]:
            raise _no_match(rule_name, rule, tags, rules)
        free = [name for name in free if name not in rules[rule_name]]
    near, clean = blend.near_duplicates, blend.decontaminate
    order = near.priority if near else []
    priority = sorted(tags, key=lambda name: (_position(name, tags[name], order), name))
    return Members(rules=rules, priority=priority, against=_evaluation(clean.against if clean else [], there))


def _matches(name: str, tags: Iterable[str], patterns: Iterable[str]) -> bool:
    for pattern in patterns:
        if pattern.startswith("tag:"):
            if any(fnmatch.fnmatchcase(tag, pattern[4:]) for tag in tags):
                return True
        elif fnmatch.fnmatchcase(name, pattern):
            return True
    return False


def _position(name: str, tags: Iterable[str], patterns: list[str]) -> int:
    return next((i for i, pattern in enumerate(patterns) if _matches(name, tags, [pattern])), len(patterns))


def _no_match(rule_name: str, rule: Rule, tags: dict[str, list[str]], rules: dict[str, list[str]]) -> ConfigError:
    taken = {
        name: other for other, names in rules.items() for name in names if _matches(name, tags[name], rule.patterns)
    }
    if taken:
        found = "earlier rules have them: " + ", ".join(f"{name} ({other})" for name, other in sorted(taken.items()))
        fix = f"move {rule_name} up, or remove it"
    else:
        known = {f"tag:{tag}" for own in tags.values() for tag in own} | set(tags)
        found = f"datasets there are: {', '.join(tags) or 'none'}"
        fix = did_you_mean(rule.patterns[0] if rule.patterns else "", known)
    return ConfigError(
        f"matches no dataset ({', '.join(rule.patterns)})", file=FILE, key=f"allocate.{rule_name}", found=found, fix=fix
    )


def _evaluation(names: list[str], there: Mapping[str, Mapping[str, Any]]) -> list[str]:
    for name in names:
        if name not in there:
            fix = did_you_mean(name, [other for other in there if there[other].get("role") == "evaluation"])
            raise ConfigError(f"no dataset '{name}'", file=FILE, key="decontaminate.against", fix=fix)
        if there[name].get("role") != "evaluation":
            fix = f"role: evaluation in conf/dataset/{name}.yaml, or leave it out here"
            raise ConfigError(f"'{name}' is trained on", file=FILE, key="decontaminate.against", fix=fix)
    return sorted(set(names))
