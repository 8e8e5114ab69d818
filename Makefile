# Every target calls one script or module; `make help` lists them.
SHELL := /bin/bash
PY := .venv/bin/python
.DEFAULT_GOAL := help

##@ See it
.PHONY: demo demo-env demo-down
demo: venv ## From a bare machine to a running fleet on real flights, and a report that adds up
	$(PY) -m e2e.demo up

demo-env: venv ## Shell words that point kubectl and helm at the demo cluster, for eval
	@$(PY) -m e2e.demo env

demo-down: venv ## Remove everything the demo made, cluster included
	$(PY) -m e2e.demo down

##@ Work on it
.PHONY: test lint format bench soak images lock crds release-check
test: venv ## Every suite; what was skipped, and why, on the last lines
	$(PY) -m tests.run

lint: venv ## ruff, mypy (strict), import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: venv ## Rewrite the code in the project's format
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: venv ## Benchmarks beside their peers, written to bench/results
	$(PY) -m bench

soak: venv ## Half an hour of members and brokers dying under load, judged record by record (MINUTES=, SEED=)
	$(PY) -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

release-check: venv ## Whether recorded benchmark results are of this version and this code
	$(PY) -m bench.release_check

images: venv ## Build the operator's, the worker's and the Spark jobs' image
	$(PY) -m e2e.local_cluster images --spark

lock: venv ## Resolve requirements/*.txt again from pyproject.toml
	./requirements/lock.sh

crds: venv ## Write the schemas of Kubernetes' own types in crds/ again from tests/core_types/core-v1.json
	$(PY) -m tests.core_types

##@ Housekeeping
.PHONY: venv clean help
venv: ## The virtual environment, from the lock
	@./bootstrap.sh

clean: ## Remove what the build left in the checkout (not the shared cache)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info

help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
