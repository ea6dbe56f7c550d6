"""tokenize: the target's token ids of every answered conversation, and the exact loss mask."""

from draftmill.tokenize.colours import pieces
from draftmill.tokenize.mask import Mask
from draftmill.tokenize.stage import build

__all__ = ["Mask", "build", "pieces"]
