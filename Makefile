# `make demo` and `make test` need nothing but Python 3.11 or newer and a network to install from:
# each sets up the environment in .venv first, once, and again only when the pins or the project file change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test fast check lint types format zoo readme results clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/make \1|\2/' | awk -F'|' '{ printf "  %-12s %s\n", $$1, $$2 }'

demo: $(READY) ## prune a network on handwritten digits, from training to a file (options: make demo ARGS="--params 0.2")
	@$(BIN)/headgate demo $(ARGS)

# One thread a worker: two workers with two threads each would fight over two cores.
test: $(READY) ## run the tests, warnings as errors (one test: make test ARGS="-k name")
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) $(ARGS)

fast: $(READY) ## run three quarters of the tests in less than half of the time: no trainings, no zoo
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow" $(ARGS)

check: lint types test ## formatter, linter, strict types, then the tests

lint: $(READY) ## formatter and linter, changing nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(READY) ## mypy, strict on src
	@$(BIN)/mypy

format: $(READY) ## format the code and apply the linter's safe fixes
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format .

zoo: $(READY) ## try every model of torchvision, transformers and timm (takes long), then write docs/zoo.md
	@for library in torchvision transformers timm; do $(BIN)/python -m benchmarks.zoo --library $$library $(ARGS) || exit 1; done
	@$(BIN)/python -m headgate_lab.report.zoo

readme: $(READY) ## rewrite the README's results from the records in results/
	@$(BIN)/python -m headgate_lab.report.readme

results: $(READY) ## rewrite docs/results.md and its figures from the records of experiments
	@$(BIN)/python -m headgate_lab.report.page

clean: ## remove the environment and everything tools left behind
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted set-up is simply done again.
# A .venv whose pip does not run is a half-made one: it is thrown away.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11 or newer" >&2; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || { echo "error: PYTHON=$(PYTHON) is not a program (choose one with make PYTHON=/path/to/python)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is $$("$(PYTHON)" -V 2>&1); the pinned environment needs Python 3.11 or newer (choose one with make PYTHON=/path/to/python)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "Setting up $(VENV) (the first time takes a few minutes: torch is a large download)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
