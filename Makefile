# All that is needed is Python 3.11 or later and make; `make test` and `make demo` install the rest into .venv.

PYTHON ?= python3
ENGINES ?= $(HOME)/.cache/speculation-sweep/engines
PIP := .venv/bin/python -m pip install -q --disable-pip-version-check
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help search-benchmark chaos demo test fuzz docs check engine-sglang-cpu test-sglang test-sglang-full test-upstream clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-20s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e '.[dev,gpu]'
	touch $@

demo: $(READY) ## a whole sweep with a simulated engine, no GPU, about a minute
	.venv/bin/python -m orchestrator sweep conf=demo

test: $(READY) ## every test that needs neither SGLang nor a GPU, WORKERS=4 at a time
	.venv/bin/pytest -n $(or $(WORKERS),4) --dist worksteal -m "not sglang and not gpu"

fuzz: $(READY) ## thousands of damaged configs, runs, logs and answers (half an hour; `make test` has some hundred)
	FUZZ_EXAMPLES=1000 .venv/bin/pytest --timeout 3000 tests/test_fuzz.py

docs: $(READY) ## write the pages of docs/ that are made from declarations anew
	.venv/bin/python -m results.reference docs
	.venv/bin/python -m orchestrator.config.reference docs

check: $(READY) ## lint, format, types, and which package may import which
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

engine-sglang-cpu: ## the real SGLang for a machine without a GPU, in an environment of its own (2.4 GiB, 2 minutes, once)
	$(PYTHON) tests/sglang_cpu/build.py $(ENGINES)

test-sglang: $(READY) engine-sglang-cpu ## sweeps of the real SGLang with tiny models, and the rules against its arguments, two files at a time (some minutes)
	.venv/bin/pytest -n 2 --dist loadfile -m sglang tests/sglang_cpu tests/upstream

test-sglang-full: $(READY) ## the same with SmolLM2-135M and trained drafters: DRAFTERS=folder that holds full/
	$(PYTHON) tests/sglang_cpu/build.py $(ENGINES) smollm2
	DRAFTERS='$(abspath $(DRAFTERS))' .venv/bin/pytest -m sglang tests/sglang_cpu/test_full.py

test-upstream: $(READY) engine-sglang-cpu ## every rule against the arguments of SGLang 0.5.17 and the newest one (half an hour); tables go to .engines/
	$(PYTHON) tests/sglang_cpu/build.py $(ENGINES) newest
	UPSTREAM=all UPSTREAM_TABLES=.engines .venv/bin/pytest -m sglang tests/upstream

search-benchmark: $(READY) ## searches on made-up landscapes with a known best, ours beside tpe, random and grid: SEEDS=1000:1048
	.venv/bin/python benchmarks/search.py seeds=$(or $(SEEDS),1000:1048)

chaos: $(READY) ## random kills of everything over many short sweeps: FAULTS=200 takes half an hour
	.venv/bin/python -m tests.chaos.storm faults=$(or $(FAULTS),200)

clean: ## remove what make made here (the engines' cache stays)
	rm -rf .venv .engines build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
