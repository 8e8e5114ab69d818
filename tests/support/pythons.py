"""Other versions of Python than the one that runs the tests, built from source, with the packages of the locks.

The sources are a Go module with a committed sum: Go's tools are needed anyway, and no other registry of the tests has
Python itself. Each is built once per version and content of the locks, and kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import run, stream
from e2e.local_cluster.gomodules import module_folder
from e2e.local_cluster.steps import step
from tests.support.suites import ROOT

__all__ = ["MODULES", "ROOMS", "ensure_python", "make_environment"]

MODULES: Final = ROOT / "tests" / "pythons" / "modules"
"""A folder for each minor version; its go.mod names the patch version, and go.sum has the sum."""
LIBRARY: Final = ROOT / "consumer_image" / "fleet_consumer"
ROOMS: Final = tuple(each for each in sorted((ROOT / "tests" / "unit").iterdir()) if (LIBRARY / each.name).is_dir())
"""The unit tests of the library and the worker."""
SOURCE: Final = "github.com/python/cpython"
LOCKS: Final = tuple(ROOT / "requirements" / f"{name}.txt" for name in ("dev", "operator"))
OPTIONS: Final = ("--quiet", "--disable-test-modules")
JOBS: Final = str(os.cpu_count() or 1)


def ensure_python(minor: str) -> Path:
    """Return the interpreter of a version such as 3.14, with all packages of the locks; built if it is not there yet.

    Raises ClusterError (``DownloadFailed``, ``BuildFailed``).
    """
    pins = MODULES / minor
    content = (pins / "go.sum").read_bytes() + b"".join(lock.read_bytes() for lock in LOCKS) + repr(OPTIONS).encode()
    folder = fleet_home() / "pythons" / f"{minor}-{hashlib.sha256(content).hexdigest()[:8]}"
    made = cache_entry(folder, lambda into: _build(minor, pins, into), purpose=f"building Python {minor}")
    return made / "bin" / f"python{minor}"


def _build(minor: str, pins: Path, into: Path) -> None:
    source, logs = module_folder(SOURCE, pins), fleet_home() / "logs"
    made = into / "build"
    made.mkdir()
    # The module's folder is read-only, and Go's archives keep no file modes.
    configure = ["sh", source / "configure", *OPTIONS, f"--prefix={into}"]
    for what, command in (
        ("configure", configure),
        ("compile", ["make", "--silent", f"--jobs={JOBS}", "all"]),
        ("install", ["make", "--silent", "install"]),
    ):
        with step(f"Python {minor}: {what}"):
            log = logs / f"python-{minor}-{what}.log"
            stream([str(word) for word in command], log=log, on_line=lambda _: None, reason="BuildFailed", cwd=made)
    run(["rm", "-rf", made])
    with step(f"Python {minor}: packages"):
        _pip(
            into / "bin" / f"python{minor}",
            "install",
            "--root-user-action=ignore",
            *(f"--requirement={lock}" for lock in LOCKS),
        )


def make_environment(python: Path, into: Path) -> Path:
    """Make a virtual environment on top of an interpreter's packages, with this checkout in it; its interpreter."""
    made = into / "bin" / "python"
    run([python, "-m", "venv", "--system-site-packages", "--without-pip", into], reason="BuildFailed")
    _pip(python, "--python", made, "install", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    return made


def _pip(python: Path, *arguments: str | Path) -> None:
    run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], reason="BuildFailed")
