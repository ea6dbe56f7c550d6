"""Export: the trained drafter as a directory that SGLang and vLLM load unchanged, and the linter that proves it.

build/train/drafter/ ─ layout: config.json, tensor names ─> build/export/ ─ lint: both loaders' rules
"""
