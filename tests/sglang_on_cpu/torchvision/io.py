"""See torchvision/__init__.py."""

from typing import Any


class ImageReadMode:
    RGB, UNCHANGED, GRAY = "RGB", "UNCHANGED", "GRAY"


def __getattr__(name: str) -> Any:
    return type(name, (), {})
