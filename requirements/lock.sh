#!/usr/bin/env bash
# Resolves the pinned requirements from pyproject.toml; all locks are held to the versions of the first.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(.venv/bin/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header)
"${compile[@]}" --extra consumer --extra dev -o requirements/dev.txt pyproject.toml
"${compile[@]}" --extra operator -c requirements/dev.txt -o requirements/operator.txt pyproject.toml
"${compile[@]}" --extra consumer -c requirements/dev.txt -o requirements/consumer.txt pyproject.toml
"${compile[@]}" --extra consumer --extra spark -c requirements/dev.txt -o requirements/spark.txt pyproject.toml
"${compile[@]}" --extra plugin --extra tools -c requirements/dev.txt -c requirements/operator.txt -o requirements/tools.txt pyproject.toml
