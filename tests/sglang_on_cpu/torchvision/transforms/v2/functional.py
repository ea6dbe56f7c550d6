"""See torchvision/__init__.py."""

from .. import InterpolationMode, __getattr__

__all__ = ["InterpolationMode", "__getattr__"]
