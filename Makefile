# Each target sets up all it needs: a fresh machine with Python 3.11 or newer, make and pip.
PYTHON ?= python3
BIN := .venv/bin

PYTEST := $(BIN)/pytest --quiet --dist loadgroup --no-loadscope-reorder

# Hundreds of processes of the tests import the same files: let Python keep what it compiles.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test quick libraries lint docs lock clean

install: .venv/installed

demo: .venv/installed
	$(BIN)/dragoman demo

test: lint
	$(PYTEST) --numprocesses 4

# All tests that start no process, machine or browser: for in between, about a minute.
quick: .venv/installed
	$(PYTEST) --numprocesses 2 -m "not slow"

# What Dragoman writes for others, read by their own libraries: W&B, MLflow, Trackio, Argos Translate,
# and the last Transformers with a translation pipeline. They bring dozens more, so they are kept
# apart; without them `make test` leaves these tests out.
libraries: .venv/installed
	$(BIN)/pip install --quiet --upgrade --no-deps --target build/libraries \
		--requirement requirements-libraries.lock
	$(BIN)/pip install --quiet --upgrade --no-deps --target build/transformers4 \
		transformers==4.57.6 tokenizers==0.22.2 huggingface_hub==0.36.2
	PYTHONPATH=build/libraries $(PYTEST) --numprocesses 2 tests/runs/test_trackers.py \
		tests/inference/test_argos.py
	PYTHONPATH=build/transformers4:build/libraries $(PYTEST) --numprocesses 2 \
		tests/inference/test_transformers.py

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
