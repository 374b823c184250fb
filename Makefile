# Thin on purpose: it sets up .venv and calls the programs there. All configuration is in pyproject.toml.
#
#   make demo        two workers, one store, a real model   (ARGS='--model tiny' for the small one)
#   make test        every test, and the coverage of kvstore/core and kvstore/ring
#   make test-fast   unit, property and static tests with few examples, under 90 seconds
#   make test-benchmarks every benchmark with minimal work, and the faults that outlive.py has to find
#   make test-engines the contract of every remote engine: also groups, TLS, S3 and helpers
#   make docs        the documentation as a site, every link checked and every snippet run
#   make lint        ruff and mypy
#   make bench       every benchmark, quickly
#   make bench-peers this store beside its peers, each in its own environment
#   make test-vllm   real vLLM on the store, in its own environment: prints a table of cases
#   make test-sglang real SGLang on the store, in its own environment: prints a table of cases
#   make test-routers real routers before and beside our servers, in their own environment
#   make kernels     the GPU kernels without a GPU, in their own environment with Triton:
#                    interpreted, and compiled for four GPUs; prints the registers and memory of each
#   make promtool    Prometheus' checker, from Debian's package, into .tools: some tests use it
#   make redis       Redis with TLS, from Debian's packages, into .tools: tests of TLS use it
#   make chromium    Debian's browser, as root: tests of the web page use it
#   make dist        the sdist and the wheel of the last commit, in dist/, checked
#   make dist-test   installs that wheel, worker and all, in an empty environment and runs it
#   make gpu-bundle  packs gpu-bundle/ for a GPU machine without network: see docs/gpu.md
#   make gpu-dry-run runs the bundle's four scripts here, without a GPU: 5 GB, in .venv-gpu
#   make clean       removes .venv and the other environments, caches and build outputs
#
# PYTHON is the interpreter of .venv. PIP_ARGS goes to pip, ARGS to the demo or to pytest.
# GPU_PYTHON is the version of Python on the GPU machine.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := test

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
PIP_ARGS ?=
ARGS ?=
GPU_PYTHON ?= 3.12

# Tests start hundreds of interpreters, and without bytecode each compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What `make demo` alone needs: no tools of tests and documentation, which all others add to it;
# no Gemma where another model is asked for.
DEMO_STAMP := $(VENV)/.installed-demo
TINY_STAMP := $(VENV)/.installed-tiny
DEMO_NEEDS := $(if $(findstring --model,$(ARGS)),$(if $(filter gemma --model=gemma,$(ARGS)),$(DEMO_STAMP),$(TINY_STAMP)),$(DEMO_STAMP))
# The first that is there of those that have as much.
DEMO_NEEDS := $(firstword $(wildcard $(STAMP)) \
    $(if $(filter $(TINY_STAMP),$(DEMO_NEEDS)),$(wildcard $(DEMO_STAMP))) $(DEMO_NEEDS))
$(STAMP): EXTRAS := server,worker,demo,dev
$(DEMO_STAMP): EXTRAS := server,worker,demo
$(TINY_STAMP): EXTRAS := server,worker,valkey
# Separate from .venv: if Triton is installed, torch and transformers import other code.
KERNELS := .venv-kernels
KERNELS_STAMP := $(KERNELS)/.installed
KERNELS_NEEDS := tests/kernels/requirements.txt
$(KERNELS_STAMP): VENV := $(KERNELS)
$(KERNELS_STAMP): BIN := $(KERNELS)/bin
$(KERNELS_STAMP): EXTRAS := worker,cuda,kernels
$(KERNELS_STAMP): MORE = && $(PIP) --no-deps --requirement $(KERNELS_NEEDS)
$(KERNELS_STAMP): $(KERNELS_NEEDS)
PIP = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
    --constraint constraints.txt $(PIP_ARGS)
PYTEST := $(BIN)/pytest -n 3

# Two set-ups at a time would be in one folder.
.NOTPARALLEL:
.PHONY: venv demo docs test test-fast test-benchmarks test-engines test-routers test-vllm test-sglang kernels lint bench bench-peers promtool redis chromium dist dist-test gpu-bundle gpu-dry-run clean

venv: $(STAMP)

# The build backend comes first and pinned, so that the editable install builds with that one.
# pip says several lines for each package: here are the large ones, all of it is in setup.log.
$(STAMP) $(DEMO_STAMP) $(TINY_STAMP) $(KERNELS_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) \
	    else f"kvstore needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d: set PYTHON" % v)'
	@echo "Setting up $(VENV) with $(PYTHON) ($(EXTRAS)): takes a minute or a few, once."
	@echo "After 'Installing collected packages' nothing is said for a minute or more."
	@$(PYTHON) -m venv $(VENV)
	@{ $(PIP) hatchling editables && $(PIP) --no-build-isolation --editable '.[$(EXTRAS)]' $(MORE); } 2>&1 \
	    | tee $(VENV)/setup.log \
	    | { grep --line-buffered -E ' MB\)$$|Processing .*[.]whl|^Installing collected' || true; } \
	    | sed -u -E 's/^ *//; s/^(Installing collected packages).*/\1/; s/^/  /' \
	    || { grep -Ev '^(WARNING|Requirement already)' $(VENV)/setup.log | tail -n 30; exit 1; }
	@touch $@

demo: $(DEMO_NEEDS)
	@$(BIN)/kvstore-worker demo $(ARGS)

# Three workers on two cores: tests that start processes wait for them a third of the time.
test: $(STAMP)
	@KVSTORE_HYPOTHESIS_PROFILE=ci $(PYTEST) --cov --cov-report=term --durations=10 $(ARGS)

# Real processes, models and benchmarks. To leave a folder out also saves the imports of its tests.
# What is left computes all the time, so a third worker would cost more than it gains.
NOT_FAST := chaos e2e gpu integration unit/benchmarks \
    $(addprefix unit/worker/,attention chat demo engine model)
test-fast: $(STAMP)
	@KVSTORE_HYPOTHESIS_PROFILE=dev $(PYTEST) -n 2 -m 'not slow' $(addprefix --ignore=tests/,$(NOT_FAST)) $(ARGS)

test-benchmarks: $(STAMP)
	@KVSTORE_BENCHMARKS=1 $(PYTEST) --durations=5 tests/benchmarks $(ARGS)

test-engines: $(STAMP)
	@KVSTORE_ENGINES=1 $(BIN)/pytest -n 2 --durations=5 \
	    $(addprefix tests/integration/test_remote_,engines.py groups.py s3.py) $(ARGS)

# The routers are programs in an environment of their own; the tests run in .venv.
test-routers: $(STAMP)
	@$(PYTHON) tests/routers/environment.py $(PIP_ARGS)
	@KVSTORE_ROUTERS=1 $(BIN)/pytest -n 0 --durations=5 tests/routers $(ARGS)

# Its environment has vLLM's versions, never .venv's.
test-vllm:
	@$(PYTHON) tests/vllm/environment.py $(PIP_ARGS)
	@cd tests/vllm && ../../.venv-vllm/bin/python -m pytest -q
	@.venv-vllm/bin/python tests/vllm/run.py $(ARGS)

# As test-vllm, with SGLang's versions.
test-sglang:
	@$(PYTHON) tests/sglang/environment.py $(PIP_ARGS)
	@.venv-sglang/bin/python tests/sglang/run.py $(ARGS)

# Triton reads the variable at its first import. The run fails if a test is skipped, or if no test
# was collected.
kernels: $(KERNELS_STAMP)
	@TRITON_INTERPRET=1 KVSTORE_HYPOTHESIS_PROFILE=ci $(KERNELS)/bin/python -m pytest -n 2 \
	    --durations=5 tests/kernels $(ARGS)

# No network: neither the site nor its check fetches anything.
docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@$(BIN)/python docs/site_check.py build/site
	@KVSTORE_SNIPPETS=all $(PYTEST) tests/integration/test_snippets.py \
	    tests/static/test_generated_code.py tests/static/test_site.py tests/static/test_links.py $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

# Out of the package, which would start a server where it is installed. Needs no root.
promtool:
	@command -v apt-get dpkg-deb >/dev/null || \
	    { echo "promtool comes from Debian's package prometheus, and apt-get is not here: put a promtool into PATH"; exit 1; }
	@mkdir -p .tools && cd .tools && \
	    { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } && \
	    dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && rm prometheus_*.deb
	@.tools/usr/bin/promtool --version | head -n 1

# Valkey's package for tests has no TLS. Debian's server is a link to a program of the tools.
REDIS_PACKAGES := redis-server redis-tools libhiredis0.14 libjemalloc2 liblua5.1-0 liblzf1 lua-bitop lua-cjson
redis:
	@command -v apt-get dpkg-deb >/dev/null || \
	    { echo "redis comes from Debian's packages, and apt-get is not here: put a redis-server with TLS into PATH"; exit 1; }
	@mkdir -p .tools/redis && cd .tools/redis && \
	    { apt-get download -qq $(REDIS_PACKAGES) || { apt-get update -qq && apt-get download -qq $(REDIS_PACKAGES); }; } && \
	    for package in *.deb; do dpkg-deb --extract $$package .; done && rm *.deb
	@printf '#!/bin/sh\nhere=%s\nLD_LIBRARY_PATH=$$(echo $$here/usr/lib/*-linux-gnu) exec $$here/usr/bin/redis-server "$$@"\n' \
	    "$$PWD/.tools/redis" > .tools/redis-server && chmod +x .tools/redis-server
	@.tools/redis-server --version

bench: $(STAMP)
	@shopt -s nullglob; found=(benchmarks/*.py); \
	if [ $${#found[@]} -eq 0 ]; then echo "No benchmarks yet: benchmarks/ has no scripts."; fi; \
	for script in "$${found[@]}"; do echo "== $$script"; $(BIN)/python "$$script" --quick; done

# A peer that cannot be had is left out, and said so. ARGS are those of fetch.py.
bench-peers: $(STAMP)
	@for script in benchmarks/peers/*_environment.py; do $(BIN)/python $$script $(PIP_ARGS); done
	@$(BIN)/python benchmarks/fetch.py $(ARGS)
	@$(BIN)/python benchmarks/index.py --quick

$(BIN)/twine: $(STAMP)
	@$(PIP) --quiet twine
	@touch $@

dist: $(BIN)/twine
	@rm -rf dist
	@$(BIN)/python deploy/dist.py dist
	@$(BIN)/twine check --strict dist/*

# Torch and all: some minutes and 2 GB, before a release and not on each change.
dist-test: dist
	@KVSTORE_DIST=dist $(BIN)/pytest -n 0 -rA tests/integration/test_wheel.py $(ARGS)

# With all that it needs of the system, which is why it takes root.
chromium:
	@command -v apt-get >/dev/null && [ $$(id -u) -eq 0 ] || \
	    { echo "Chromium comes by Debian's apt-get, as root: or put one into PATH, or into KVSTORE_CHROMIUM"; exit 1; }
	@apt-get update -qq
	@DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null
	@chromium --version 2>/dev/null

# The standard library and pip are enough: no environment is set up.
gpu-bundle:
	@$(PYTHON) benchmarks/gpu_machine/bundle.py --python $(GPU_PYTHON) $(PIP_ARGS)

# The environment has only the packages of a GPU machine, so a missing package is found here.
gpu-dry-run:
	@$(PYTHON) benchmarks/gpu_machine/dry_run.py --python $(GPU_PYTHON) $(PIP_ARGS)

clean:
	@rm -rf $(VENV) $(KERNELS) .tools gpu-bundle .venv-gpu .venv-peers .venv-routers .venv-sglang .venv-vllm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
