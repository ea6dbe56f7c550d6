"""How long prompts and answers are, in words that explain themselves."""

from __future__ import annotations

from array import array

_QUANTILES = (0.5, 0.9, 0.99)


class Lengths:
    """Collects (prompt tokens, answer tokens) of each question; 8 bytes a question."""

    def __init__(self) -> None:
        self._prompt, self._answer = array("i"), array("i")

    def add(self, prompt_tokens: int, answer_tokens: int) -> None:
        """One question with its answer."""
        self._prompt.append(prompt_tokens)
        self._answer.append(answer_tokens)

    def summary(self) -> dict[str, object]:
        """`prompt_tokens` and `answer_tokens` (n, mean, quantiles, max), and `lengths_note`, a sentence."""
        if not self._answer:
            return {}
        prompt, answer = _figures(self._prompt), _figures(self._answer)
        return {"prompt_tokens": prompt, "answer_tokens": answer, "lengths_note": _note(prompt, answer)}


def _figures(values: array[int]) -> dict[str, float]:
    ordered = sorted(values)
    quantiles = {f"p{q * 100:g}": ordered[min(int(q * len(ordered)), len(ordered) - 1)] for q in _QUANTILES}
    return {"n": len(ordered), "mean": round(sum(ordered) / len(ordered), 1), **quantiles, "max": ordered[-1]}


def _note(prompt: dict[str, float], answer: dict[str, float]) -> str:
    """A trace of an agent asks with a long history for one short action: that is its nature, not a fault."""
    if prompt["p50"] >= 8 * answer["p50"]:
        return "long prompts, short answers: usual for agent traces, where each answer is one action"
    if answer["p50"] >= 8 * prompt["p50"]:
        return "short prompts, long answers: usual for questions that are reasoned about"
    return "prompts and answers of like length"
