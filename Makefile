# `make demo` and `make test` set up everything they need in $(VENV).
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: demo test lint types protos check bench conformance support clean help

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

conformance: $(VENV)/.ready ## What becomes of every operator of torch's database (two to five minutes of one core per run)
	PYTHONPATH=tests $(BIN)/python -m conformance --profile onnxruntime --out tests/conformance/results/onnxruntime-float32.json
	PYTHONPATH=tests $(BIN)/python -m conformance --profile trt86 --out tests/conformance/results/trt86-float32.json
	for dtype in float16 bfloat16 float64 int64 bool; do PYTHONPATH=tests $(BIN)/python -m conformance --profile onnxruntime \
	  --samples 1 --dtype $$dtype --out tests/conformance/results/onnxruntime-$$dtype.json || exit 1; done

support: $(VENV)/.ready ## docs/operator-support.md from the results of the last conformance run
	PYTHONPATH=tests $(BIN)/python -m conformance.page

check: lint types test ## What CI runs, without the demo

protos: $(VENV)/.ready ## Regenerate the committed gRPC code
	PYTHON="$(BIN)/python" scripts/gen_protos.sh

clean: ## Remove the demo's state and output, not the virtual environment
	rm -rf .demo build dist
