# make demo   set up and show, in about two minutes, what the shield does and does not do
# make check  the habit, under two minutes: format, lint, types, and the tests that matter most
# make test   set up and run every check: format, lint, types, tests with coverage
# make wheels what a release consists of, in dist/; make check-wheels installs and tries it
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# A worker a core, each with one thread: two that both use all cores wait for each other most of the time.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses auto --dist worksteal

# What an installation is made from; the rest of the package is used where it lies.
SOURCES := pyproject.toml constraints.txt setup.py $(wildcard native/*.?pp)

.PHONY: demo check test format sanitize wheels check-wheels clean

demo: .venv/demo-ready
	$(BIN)/vqshield demo

test: .venv/test-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

check: .venv/test-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m check

format: .venv/test-ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/demo-ready: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli]"
	touch $@

.venv/test-ready: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli,dev,interop,imagenet,cluster]"
	touch $@

sanitize: .venv/test-ready
	$(BIN)/python native/sanitize.py --record benchmarks/results/fuzz-native.json

wheels:
	$(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/pip install --quiet --disable-pip-version-check build auditwheel ziglang
	.venv-wheels/bin/python tools/make_wheels.py

check-wheels:
	$(PYTHON) tools/check_wheels.py

clean:
	rm -rf .venv .venv-wheels build dist vqshield-demo vqshield-evaluation vqshield-audit vqshield-reproduction
