# `make` alone prints the targets. Everything is installed into .venv; nothing needs to be there but a Python.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint type bench peers docs clean

VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= test
PEERS := .venv-peers
PEER_PACKAGES := onnx==1.14.1 'protobuf<4.25' onnxruntime torch==2.13.0 pytorch-tree-lstm==0.1.3
STAMP := $(VENV)/.installed-$(EXTRAS)
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.10 python3)

# Tests: WORKERS processes share the cores. A run that hangs ends after the limits below (in seconds).
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= 2
THREADS := $(shell expr $(CORES) / $(WORKERS) \| 1)
LIMIT := $(and $(shell command -v timeout),timeout --foreground)
TEST_SECONDS ?= 900
BENCH_SECONDS ?= 300

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON=/path/to/python  EXTRAS=test,peers  WORKERS=2  ARGS='-k name' (for test and bench)"

setup: $(STAMP) ## Make .venv and install graphopt in it, editable; a second call has nothing to do

# The candidates may exist and still fail (version managers leave such stubs), so each one has to run.
$(STAMP): pyproject.toml setup.py
	@set -e; found=; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  for candidate in $(PYTHONS); do \
	    if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; \
	    then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "graphopt needs Python 3.10, 3.11 or 3.12 with its venv module (a package of its own on Debian and" \
	      "Ubuntu: python3-venv), and none of these is one: $(PYTHONS); name one with make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi; \
	echo "installing graphopt[$(EXTRAS)] into $(VENV); the first time this takes some minutes"; \
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq -e '.[$(EXTRAS)]'; \
	$(BIN)/python -m graphopt.kernels.bridge.build || true  # it says what does not work without
	@touch $@

demo: $(STAMP) ## Optimize the built-in models and show what each pass did
	$(BIN)/graphopt demo

test test-all: export OMP_NUM_THREADS ?= $(THREADS)
# Threads of other processes have work to do while ours wait for each other.
test test-all: export OMP_WAIT_POLICY ?= passive
test: MARKED := not slow
test-all: MARKED := slow or not slow
test-all: TEST_SECONDS := 3000
test: ## Run all but slow tests, then every bench once without timing it
test-all: ## Run all tests, then every bench once without timing it
test test-all: $(STAMP)
	$(LIMIT) $(if $(LIMIT),$(TEST_SECONDS)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=12 -m '$(MARKED)' $(ARGS)
	@if compgen -G 'bench/test_*.py' >/dev/null; then \
	  echo "benches, once each and untimed:"; \
	  GRAPHOPT_COMPILERS=0 $(LIMIT) $(if $(LIMIT),$(BENCH_SECONDS)) $(BIN)/python -m pytest bench -qq -n $(WORKERS) --dist worksteal --benchmark-disable; \
	fi

lint: $(STAMP) ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(STAMP) ## Check types
	$(BIN)/python -m mypy -p graphopt

bench: $(STAMP) ## Time graphopt against its peers (EXTRAS=test,peers installs them)
	$(BIN)/python -m pytest bench --benchmark-only --benchmark-columns=min,median,iqr,rounds $(ARGS)

peers: $(PEERS)/.installed ## Make .venv-peers with ONNX Runtime and PyTorch, which `make bench` then times too

# Apart from .venv, whose versions they need not agree with; MXNet is there to export models to ONNX.
$(PEERS)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install -qq mxnet==1.9.1 'numpy<2' setuptools $(PEER_PACKAGES)
	@touch $@

docs: $(STAMP) ## Write docs/passes.md anew from the passes
	@mkdir -p docs
	$(BIN)/graphopt passes --markdown >docs/passes.md.new
	@mv docs/passes.md.new docs/passes.md

clean: ## Remove build outputs, caches and reports; to start all over, remove .venv too
	rm -rf build dist *.egg-info .benchmarks .coverage htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
