# `make demo` and `make test` set up everything they need in $(VENV).
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: demo test lint types protos check bench clean help

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(VENV)/.ready: pyproject.toml constraints.txt scripts/setup_venv.sh
	PYTHON="$(PYTHON)" scripts/setup_venv.sh "$(VENV)"

demo: $(VENV)/.ready ## Run the main job on this machine, from model.py to the verified engine
	$(BIN)/python scripts/demo.py

test: $(VENV)/.ready ## Run the whole test suite
	$(BIN)/python -m pytest

lint: $(VENV)/.ready ## ruff, buf lint, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint
	PYTHON="$(BIN)/python" scripts/gen_protos.sh --check

types: $(VENV)/.ready ## mypy --strict over the packages
	$(BIN)/mypy protos core controller agents/kronos agents/gaia agents/forge client

check: lint types test ## What CI runs, without the demo

protos: $(VENV)/.ready ## Regenerate the committed gRPC code
	PYTHON="$(BIN)/python" scripts/gen_protos.sh

clean: ## Remove the demo's state and output, not the virtual environment
	rm -rf .demo build dist
