"""draftmill: a declarative build system for speculative-decoding drafters.

conf/*.yaml --compose--> params.yaml --dvc repro--> build/<stage>/<dataset>/

One verb, one name: the stage `tokenize` in dvc.yaml is `stages/tokenize.py`, `draftmill.tokenize`,
its section of params.yaml, `build/tokenize/` and `tests/test_tokenize*.py`.
"""

__version__ = "0.1.0"
