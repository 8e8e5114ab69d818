# Each target calls one script or module; `make help` lists them.
SHELL := /bin/bash
PY := .venv/bin/python
.DEFAULT_GOAL := help

##@ Demo
.PHONY: try demo demo-env demo-down
try: venv ## Run Kafka, two workers, retries and a redrive on this machine, without Kubernetes (KEEP=1 keeps Kafka)
	@$(PY) -m e2e.laptop $(if $(KEEP),--keep)

demo: venv ## Set up a running fleet on real flight data on a bare machine, and print a verified report
	$(PY) -m e2e.demo up

demo-env: venv ## Print shell exports for kubectl and helm on the demo cluster, for eval
	@$(PY) -m e2e.demo env

demo-down: venv ## Remove everything that the demo created, including the cluster
	$(PY) -m e2e.demo down

##@ Development
.PHONY: test lint format bench soak docs images lock crds pages release-check release
test: venv ## Run all test suites; the last lines list skipped tests with reasons
	$(PY) -m tests.run

lint: venv ## Run ruff, mypy (strict) and import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: venv ## Rewrite the code in the project's format
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: venv ## Run benchmarks and their peers; results go to bench/results
	$(PY) -m bench

soak: venv ## Kill members and brokers under load for half an hour, and check every record (MINUTES=, SEED=)
	$(PY) -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

docs: venv ## Build the site of the documents into build/site; a broken link or a page without a place is an error
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build
	@echo "build/site/index.html"

release-check: venv ## Check that recorded benchmark results are of this version and this code
	$(PY) -m bench.release_check

release: venv ## Build a release for REGISTRY= into dist/release; with KEY=, also push and sign it
	$(PY) -m release build --into dist/release --registry "$(REGISTRY)"
	$(if $(KEY),$(PY) -m release publish dist/release --key "$(KEY)")

images: venv ## Build the images of the operator, the worker and Spark jobs
	$(PY) -m e2e.local_cluster images --spark

lock: venv ## Resolve requirements/*.txt from pyproject.toml again
	./requirements/lock.sh

crds: venv ## Regenerate the schemas of Kubernetes types in crds/ from tests/core_types/core-v1.json
	$(PY) -m tests.core_types

pages: venv ## Write the generated pages of docs/: words of conditions, fields of the custom resources
	$(PY) -m pages

##@ Housekeeping
.PHONY: venv clean help
venv: ## Create the virtual environment from the lock file
	@./bootstrap.sh

clean: ## Remove build output from the checkout (not the shared cache)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
