"""The target model: its configuration, local folder, weights, dimensions, and the one way it is rendered."""

from draftmill.target.config import ModelSource, RandomModel, ReasoningTags, Target, weights_digest
from draftmill.target.model import Shape, load_model, shape
from draftmill.target.prepare import prepare
from draftmill.target.renderer import Renderer, renderer
from draftmill.target.template import RenderError

__all__ = [
    "ModelSource",
    "RandomModel",
    "ReasoningTags",
    "RenderError",
    "Renderer",
    "Shape",
    "Target",
    "load_model",
    "prepare",
    "renderer",
    "shape",
    "weights_digest",
]
