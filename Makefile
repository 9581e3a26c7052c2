# Every target sets up what it needs; a second run finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: install quickstart test test-all toolchains lint types docs release check clean

install: $(VENV)/.base  ## what is needed to use it, in .venv

quickstart: install  ## tune on this machine: database, report and tables under results/
	$(BIN)/tuner run quickstart

# Tests that start clusters or kill processes run one after the other, at the same time as the
# others. Tests of a GPU run last, since they time it. The others keep their order: xdist would put
# files with few tests last, and these often have long tests.
ALONE := slow or ray or postgres
ALONE_LOG := build/tests_one_by_one.log
# Some tests wait most of the time: half as many again as processors, and at most four.
SIDE_BY_SIDE := $(shell $(PYTHON) -c 'import os; n = os.cpu_count() or 1; print(min(4, n + n // 2))')
PYTEST := $(BIN)/python -m pytest --durations 20
# The tests that a marker expression selects; fails if one of them does. Hundreds of processes start,
# and each would compile the sources where Python may write no byte code (PYTHONDONTWRITEBYTECODE).
define RUN_TESTS
	@mkdir -p $(dir $(ALONE_LOG))
	@$(BIN)/python -m compileall -q tuner workers search_spaces results_db
	$(PYTEST) -m "($(ALONE)) and $(1)" > $(ALONE_LOG) 2>&1 & alone=$$!; \
	$(PYTEST) -m "not ($(ALONE)) and $(1)" --numprocesses $(SIDE_BY_SIDE) --dist loadfile \
	  --no-loadscope-reorder; first=$$?; \
	wait $$alone; second=$$?; cat $(ALONE_LOG); exit $$((first + second))
endef

test: $(VENV)/.dev  ## the tests of every change: one test of each law, all variants of changed families
	$(call RUN_TESTS,not (full or gpu))

test-all: export FAMILIES = all
test-all: $(VENV)/.dev  ## every test and every variant, for a night; tests of a GPU last
	$(call RUN_TESTS,not gpu)
	$(PYTEST) -m gpu

# The pairs of Triton and torch, as files of constraints. CI, which has little time, takes the newest.
PAIRS := constraints-oldest.txt constraints-newest.txt

toolchains: $(VENV)/.dev  ## what depends on Triton, with the oldest and the newest supported version
	$(BIN)/python scripts/run_toolchains.py $(PAIRS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev  ## the documentation site, in build/site
	$(BIN)/mkdocs build --strict

release: $(VENV)/.dev  ## sdist and wheel in build/release, and the list of what the wheel holds
	$(BIN)/python scripts/build_release.py build/release

check: lint types docs test-all toolchains

$(VENV)/.base: pyproject.toml constraints.txt scripts/system-packages
	scripts/system-packages build
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch triton
	$(PIP) --editable .
	touch $@

# Libraries whose kernels and files tests use, without what else these need; fla-core imports einops.
ADOPTED := cut-cross-entropy einops fla-core flag_gems liger-kernel torchao xformers

$(VENV)/.dev: $(VENV)/.base
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps $(ADOPTED)
	touch $@

clean:
	rm -rf $(VENV) .toolchains results build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
