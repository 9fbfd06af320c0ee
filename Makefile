# Everything is installed into .venv and run from there; Python 3.11 or newer and make are all that is needed.
#
#   ENGINE=cpu   vLLM on the CPU with a small model that is installed with it (the default)
#   ENGINE=gpu   vLLM on a GPU; name a model: MODEL=<directory or hub name>
#   ENGINE=sim   a simulated engine: no vLLM, no model
#   PYTHON=...   the Python to make .venv with
#   DEMO_FLAGS, PYTEST_FLAGS   passed on

ENGINE ?= cpu
MODEL ?=
DEMO_FLAGS ?=
PYTEST_FLAGS ?=
PYTHON ?=

BIN := .venv/bin
# Tried in this order when PYTHON is not given. A name on the path may be a stub that does not run, so each is run.
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help install named-model demo test chaos lint types unit format clean

help: ## show this list
	@echo "make ..."
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12
	@sed -n 's/^#   \(.*\)/  \1/p' $(firstword $(MAKEFILE_LIST))

install: ## create .venv and install everything; quick when nothing has changed
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
		if "$$python" -c "$(IS_NEW_ENOUGH)" 2>/dev/null; then exec "$$python" -m ops.install --engine $(ENGINE); fi; \
	done; \
	echo "install: error: no Python 3.11 or newer was found (tried: $(or $(PYTHON),$(PYTHONS)));" \
		"name one: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python3.11" >&2; exit 2

named-model:
	@if [ "$(ENGINE):$(MODEL)" = gpu: ]; then \
		echo "demo: error: ENGINE=gpu needs a model: make demo ENGINE=gpu MODEL=<directory or hub name>" >&2; exit 2; \
	fi

demo: named-model install ## install, then the whole path on sample events with a live table
	@case "$(ENGINE):$(MODEL)" in \
		sim:*) set -- --engine sim ;; \
		gpu:*) set -- --engine gpu --model "$(MODEL)" ;; \
		*:) set -- --engine vllm ;; \
		*) set -- --engine vllm --model "$(MODEL)" ;; \
	esac; exec $(BIN)/tapewire demo "$$@" $(DEMO_FLAGS)

test: install lint types ## install, lint, types and all tests but chaos, those against real vLLM on the CPU included
	$(BIN)/python -m pytest -m "not chaos" $(PYTEST_FLAGS)

chaos: install ## faults against real processes under load on a real Apache Kafka; a few minutes
	$(BIN)/python -m pytest tests/chaos -m chaos $(PYTEST_FLAGS)

lint: install ## ruff, check and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## mypy
	$(BIN)/mypy

unit: install ## the tests that need no broker, no model and no other process
	$(BIN)/python -m pytest -m "not integration and not e2e and not vllm and not docker and not chaos" $(PYTEST_FLAGS)

format: install ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and everything that was built
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
