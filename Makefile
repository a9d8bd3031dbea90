# The two commands of this project are `make run` and `make test`; `make help` lists the rest.
PYTHON ?= python3
PORT   ?= 8080
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt $(PIP_ARGS)
# OpenMP threads that spin at barriers starve their neighbours on small machines.
export OMP_WAIT_POLICY ?= passive

.PHONY: help run test test-slow check lint types docs bench soak clean chromium

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing physis-stream into $(VENV) (once; a minute or two)"
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing what the tests need"
	$(PIP) -e ".[dev]"
	@touch $@

chromium:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }; } \
	  || echo "no Chromium and no apt here: browser tests will say so and fail; install Chromium to run them"

run: $(VENV)/.run ## start the server with the world that ships and open the page
	$(BIN)/physis-stream serve --port $(PORT) --open

test: $(VENV)/.dev chromium ## run every test (slow proofs: make test-slow)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.dev chromium ## run the proofs that take minutes
	$(BIN)/python -m pytest -m slow --timeout 3600 $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev ## build the documentation strictly into site/
	$(BIN)/mkdocs build --strict --quiet

check: lint types docs ## lint, types, docs and the fast tests
	$(BIN)/python -m pytest -q -m "not slow and not browser" $(PYTEST_ARGS)

bench: $(VENV)/.dev chromium ## every benchmark, quick
	$(BIN)/physis-stream bench capacity --quick
	$(BIN)/physis-stream bench latency --quick
	$(BIN)/physis-stream bench world pusht --quick

soak: $(VENV)/.dev ## sessions joining and leaving at random; MINUTES=30 for the long run
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),3)

clean: ## remove what was built
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
