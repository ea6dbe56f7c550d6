"""See torchvision/__init__.py."""

from typing import Any


class InterpolationMode:
    NEAREST, NEAREST_EXACT, BOX, HAMMING = "nearest", "nearest-exact", "box", "hamming"
    BILINEAR, BICUBIC, LANCZOS = "bilinear", "bicubic", "lanczos"


def __getattr__(name: str) -> Any:
    return type(name, (), {})
