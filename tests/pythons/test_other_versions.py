"""The unit tests of the library and the worker on newer versions of Python: users' own images may stand on them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.pythons import MODULES, ROOMS, ensure_python, make_environment
from tests.support.suites import ROOT

VERSIONS = sorted(each.name for each in MODULES.iterdir())
LIMIT_S = 1800


@pytest.mark.parametrize("version", VERSIONS)
def test_library_and_worker_pass_their_unit_tests(version: str, tmp_path: Path) -> None:
    python = make_environment(ensure_python(version), tmp_path / "environment")
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-o",
        f"cache_dir={tmp_path / 'cache'}",
        *map(str, ROOMS),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    print(done.stdout[-20_000:], done.stderr[-5_000:])
    ended = done.stdout.strip().splitlines()[-1:]
    assert done.returncode == 0, f"Python {version}: {ended}"
