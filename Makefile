# make demo   set up and show, in about two minutes, what the shield does and does not do
# make test   set up and run every check: format, lint, types, tests with coverage
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test format clean

demo: .venv/demo-ready
	$(BIN)/vqshield demo

test: .venv/test-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --cov --cov-report=term-missing:skip-covered

format: .venv/test-ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/demo-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli]"
	touch $@

.venv/test-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli,dev]"
	touch $@

clean:
	rm -rf .venv build dist vqshield-demo
