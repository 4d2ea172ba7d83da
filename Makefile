# For a newcomer: `make demo`, `make quick`, `make test`, `make docs`. Each installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILED := $(VENV)/.llama-cpp

.PHONY: demo quick test lint types unit docs bench clean

demo: $(INSTALLED)
	$(BIN)/outrider demo

quick: $(INSTALLED)
	$(BIN)/pytest --numprocesses=2 -m "not slow" tests/unit tests/conformance

test: $(COMPILED) lint types unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

unit: $(INSTALLED)
	$(BIN)/pytest --numprocesses=auto --dist=worksteal -m "not alone"
	$(BIN)/pytest -m alone

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e packages/outrider-demo -e ".[dev,docs]"
	touch $(INSTALLED)

$(COMPILED): $(INSTALLED)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e ".[llama-cpp]"
	touch $(COMPILED)

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache
