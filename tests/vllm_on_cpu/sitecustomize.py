"""Stand-ins for what vLLM's hidden-state connector takes from a CUDA device, so that the real one runs on a CPU.

On PYTHONPATH of the server, Python imports this by itself in every process. Events and streams do nothing (a CPU
does one thing after the other), memory is not pinned; all else is vLLM's own code.
"""

import contextlib
import types

import torch


class Event:
    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    def synchronize(self):
        pass

    def wait(self, *_):
        pass

    def query(self):
        return True


class Stream:
    device = torch.device("cpu")

    def __init__(self, *_, **__):
        pass

    def wait_event(self, _):
        pass

    def wait_stream(self, _):
        pass

    def synchronize(self):
        pass


class Sticky(types.ModuleType):
    """vLLM puts events without `query` here; these stay."""

    def __setattr__(self, name, value):
        if name not in ("Event", "Stream", "stream"):
            super().__setattr__(name, value)


torch.cuda.Event, torch.cuda.Stream = Event, Stream
torch.cuda.stream = lambda _: contextlib.nullcontext()
torch.cuda.__class__ = Sticky
_empty, _empty_like = torch.empty, torch.empty_like
torch.empty = lambda *given, pin_memory=False, **more: _empty(*given, **more)
torch.empty_like = lambda *given, pin_memory=False, **more: _empty_like(*given, **more)
torch.Tensor.pin_memory = lambda self, *_: self
