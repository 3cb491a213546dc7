# make demo   set up and show, in about two minutes, what the shield does and does not do
# make check  the habit, under two minutes: format, lint, types, and the tests that matter most
# make test   set up and run every check: format, lint, types, the documentation site, tests with coverage
# make docs   set up and build the documentation site, build/docs/html/index.html
# make wheels what a release consists of, in dist/; make check-wheels installs and tries it
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
# Without Gradio, which the tests of the page in a browser alone need.
APP := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable ./app

# A worker a core, each with one thread: two that both use all cores wait for each other most of the time.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses auto --dist worksteal

SPHINX := $(BIN)/python -m sphinx -W --keep-going --quiet -d build/docs/doctrees

# What an installation is made from; the rest of the package is used where it lies.
SOURCES := pyproject.toml app/pyproject.toml deploy/pyproject.toml paper/pyproject.toml constraints.txt setup.py $(wildcard native/*.?pp)

.PHONY: demo check test docs docs-links format sanitize wheels check-wheels clean

demo: .venv/demo-ready
	$(BIN)/vqshield demo

test: .venv/test-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) docs
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

check: .venv/test-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m check

# Tutorials are run again every time: their figures follow from the package, not from their own text alone.
docs: .venv/docs-ready
	rm -rf build/docs docs/generated
	OMP_NUM_THREADS=1 $(SPHINX) -b html docs build/docs/html
	$(BIN)/python tools/check_site.py build/docs/html

# Addresses of other sites, which takes a network; what leads from page to page is checked by `make docs`.
docs-links: .venv/docs-ready
	$(SPHINX) -b linkcheck -D plot_gallery=0 docs build/docs/links

format: .venv/test-ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/demo-ready: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli]"
	touch $@

.venv/test-ready: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli,dev,docs,interop,imagenet,cluster,kornia,albumentations,transformers,lightning]" --editable ./paper --editable ./deploy
	$(APP)
	touch $@ .venv/docs-ready

.venv/docs-ready: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli,docs]" --editable ./paper --editable ./deploy
	$(APP)
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
	rm -rf .venv .venv-wheels build dist docs/generated vqshield-*
