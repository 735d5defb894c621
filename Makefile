# One verb each, the same on a laptop and in CI.
#
#   make setup            .venv with everything (GPU=1: the CUDA wheels; UV=1: uv instead of pip)
#   make demo | test | test-agents | check | fmt | bench | metrics | conformance
#
# TORCH_INDEX=<url>       an index that has a CPU build of torch, if pip's own configuration knows none
# PYTHON=<path>           the Python 3.11 or 3.12 to use
SHELL := /bin/bash
.DEFAULT_GOAL := help
.ONESHELL:
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
GPU ?=
UV ?=
TORCH_INDEX ?=
EXTRAS := $(if $(GPU),gpu,cpu),judge,openai-agents,dev
STAMP := $(VENV)/.ready$(if $(GPU),-gpu)
ROOTS := harness training traces mcp_servers agents
TEST_ARGS ?=
METRICS ?= $(or $(HARNESS_SHARED),../shared)/tools/style_metrics.py

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup demo test test-agents check fmt bench metrics conformance clean

help:
	@sed -n '3,7s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt .ci/setup
	@VENV="$(VENV)" PYTHON="$(PYTHON)" GPU="$(GPU)" UV="$(UV)" TORCH_INDEX="$(TORCH_INDEX)" EXTRAS="$(EXTRAS)" bash .ci/setup
	touch $@

demo: $(STAMP)
	@$(BIN)/harness train --config examples/demo.toml $(DEMO_ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest -m "not benchmark" $(TEST_ARGS)

test-agents: $(STAMP)
	@$(BIN)/python -m tests.agent_table --into docs/agents.md $(TEST_ARGS)

check: $(STAMP)
	@$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q tests/laws/test_layers.py tests/laws/test_promises.py

fmt: $(STAMP)
	@$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	@$(BIN)/python -m pytest -q -s -m benchmark --timeout=1800 tests/benchmarks $(TEST_ARGS)

metrics: $(STAMP)
	@$(BIN)/python $(METRICS) --files --layers traces,harness,training project=.:traces,harness,training,mcp_servers:tests

conformance: $(STAMP)
	@$(BIN)/python -m tests.conformance_servers.check $(SERVERS)

clean:
	rm -rf .pytest_cache .ruff_cache .hypothesis build dist
