# Sets everything up by itself: `make needle`, `make test`.
#   PYTHON=python3.13    the interpreter of a new environment
#   VENV=.venv-3.13      where it lives; a second run reuses it
#   SEEDS=3              seeds of the needle comparison, counted from 0
#   ARMS=kaiju           arms of it, comma-separated; all by default

PYTHON ?= python3
VENV ?= .venv
SEEDS ?= 1
ARMS ?=
BIN := $(VENV)/bin

.PHONY: needle test check

needle: $(VENV)/.installed
	$(BIN)/python -m experiments.needle \
	  --seeds=$$(seq -s, 0 $$(($(SEEDS) - 1))) $(if $(ARMS),--arms=$(ARMS))

test: $(VENV)/.tests-installed
	$(BIN)/python -m pytest -n auto $(TESTS)

check: $(VENV)/.tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/.installed: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.tests-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@
