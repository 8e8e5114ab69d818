#!/usr/bin/env bash
# Makes the virtual environment from the lock, once for each content of the lock. Called by the Makefile; safe to run again.
set -euo pipefail
cd "$(dirname "$0")"

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "bootstrap: Python 3.11 or newer is needed; set PYTHON to one, or install it (Debian: apt-get install python3 python3-venv)" >&2
  exit 1
fi

locks=(requirements/dev.txt requirements/operator.txt requirements/tools.txt)
wanted=$( { cat "${locks[@]}" bootstrap.sh; sed -n "/^version = /p; /^\[project.scripts\]/,/^$/p" pyproject.toml; } | sha256sum | cut -d" " -f1)
if [ -x .venv/bin/python ] && [ "$(cat .venv/.lock-digest 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "bootstrap: installing python3-venv" >&2
    { apt-get update -qq && apt-get install -y -qq python3-venv; } >&2
  else
    echo "bootstrap: Python's venv module is missing (Debian and Ubuntu: apt-get install python3-venv)" >&2
    exit 1
  fi
fi

echo "bootstrap: virtual environment from ${locks[*]}, about a minute the first time" >&2
"$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "${locks[@]/#/--requirement=}"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
echo "$wanted" > .venv/.lock-digest
