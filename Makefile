# Each target sets up all it needs: a fresh machine with Python 3.11 or newer, make and pip.
PYTHON ?= python3
BIN := .venv/bin

PYTEST := $(BIN)/pytest --quiet --dist loadgroup --no-loadscope-reorder

# Hundreds of processes of the tests import the same files: let Python keep what it compiles.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test quick trackers lint docs lock clean

install: .venv/installed

demo: .venv/installed
	$(BIN)/dragoman demo

test: lint
	$(PYTEST) --numprocesses 4

# All tests that start no process, machine or browser: for in between, about a minute.
quick: .venv/installed
	$(PYTEST) --numprocesses 2 -m "not slow"

# The trackers' own libraries read what a run told them. They bring dozens of others, so they are
# kept apart; without them `make test` leaves these tests out.
trackers: .venv/installed
	$(BIN)/pip install --quiet --upgrade --no-deps --target build/trackers \
		--requirement requirements-trackers.lock
	PYTHONPATH=build/trackers $(PYTEST) --numprocesses 2 tests/runs/test_trackers.py

lint: .venv/installed
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

docs: .venv/installed
	$(BIN)/dragoman settings > docs/settings.md
	$(BIN)/python tests/test_run_folder_page.py

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Pins what a fresh environment resolves to. torch comes first and exactly, so that nothing
# pulls another build; the local tag (+cpu) is dropped, so that GPU machines get theirs.
# --all: before Python 3.12, pip leaves setuptools out, which builds this project.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet torch==2.13.0
	build/lock/bin/pip install --quiet --editable '.[dev]'
	build/lock/bin/pip freeze --all --exclude pip --exclude-editable | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf .venv build demo .mypy_cache .ruff_cache .pytest_cache
