"""Stands in for torchvision, of which text models use nothing: any name is an empty class."""

from typing import Any

from . import io, transforms

__all__ = ["io", "transforms"]
__version__ = "0.0.1"


def __getattr__(name: str) -> Any:
    return type(name, (), {})
