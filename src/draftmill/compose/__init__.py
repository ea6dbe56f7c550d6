"""compose: conf/*.yaml becomes params.yaml, once per change, whoever asks first.

from draftmill.compose import ensure_composed
ensure_composed()                 # the stages compose and replan
recompose(reset=True)             # `draftmill compose --reset`
"""
