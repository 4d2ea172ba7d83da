# Two commands for a newcomer: `make demo` and `make test`. Each installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint types unit bench clean

demo: $(INSTALLED)
	$(BIN)/outrider demo

test: lint types unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

unit: $(INSTALLED)
	$(BIN)/pytest --numprocesses=auto --dist=worksteal

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e packages/outrider-demo -e ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
