"""generate: every wanted prompt is answered by the target, exactly once, and every answer is kept."""

from draftmill.generate.settings import Engine, GenerateRun, Sampling

__all__ = ["Engine", "GenerateRun", "Sampling"]
