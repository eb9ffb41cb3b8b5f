# make quickstart   set everything up and run the main experiment
# make test         set everything up and run the tests
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
STAMP := $(VENV)/.setup-done

.PHONY: help setup quickstart test coverage test-browser bench results validate lint docs clean
help:
	@echo "make setup       packages and virtual environment (quick when nothing is to do)"
	@echo "make quickstart  setup, then experiments/quickstart.yaml and its report"
	@echo "make test        setup, then all parts of the tests, as root (through sudo where needed); ARGS= for pytest"
	@echo "make coverage    the share of the product that the unit tests run, in one line"
	@echo "make test-browser  setup, then reports, comparisons and plots looked at in Chromium; pictures in build/browser"
	@echo "make bench       speed and memory, with stock Mininet in the same run"
	@echo "make results     docs/results.md: the paper's questions, simulated; about half an hour on two cores"
	@echo "make validate    docs/validation: the simulation against emulation, some ten minutes on a quiet machine"
	@echo "make lint        ruff's checks and format, types, and the dependency rule"
	@echo "make docs        the documentation as a site, in build/site"
	@echo "make clean       leftovers of crashed runs, then the virtual environment and caches"

setup: $(STAMP)
$(STAMP): requirements.txt pyproject.toml setup.py testbed/emulation/delay/line.c scripts/setup
	@scripts/setup

quickstart: setup
	$(SUDO) $(VENV)/bin/testbed run experiments/quickstart.yaml

test: setup
ifdef ARGS
	$(SUDO) $(PY) -m pytest -q $(ARGS)
else
	$(SUDO) $(PY) scripts/test.py
endif

# apart from `make test`: counting lines slows pure Python down
coverage: setup
	-$(SUDO) env OMP_NUM_THREADS=1 COVERAGE_FILE=.pytest_cache/coverage $(PY) -m pytest -q -n auto --dist worksteal --cov=testbed --cov=runners --cov-report= tests/unit
	$(SUDO) env COVERAGE_FILE=.pytest_cache/coverage $(PY) -m coverage report --format=total

test-browser: setup
	command -v chromedriver >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -y -q --no-install-recommends chromium chromium-driver; }
	$(PY) -m pytest -q tests/browser $(ARGS)

bench: setup
	$(SUDO) $(PY) -m tests.bench $(ARGS)

results: setup
	$(VENV)/bin/testbed results $(ARGS)

validate: setup
	$(SUDO) $(VENV)/bin/testbed validate experiments/validation/*.yaml --output docs/validation $(ARGS)

lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/unit/test_dependency_rule.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet

clean:
	-[ ! -x $(VENV)/bin/testbed ] || $(SUDO) $(VENV)/bin/testbed clean
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
