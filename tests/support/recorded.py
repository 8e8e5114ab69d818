"""Passes of suites, kept by a digest of all that they depend on, as build tools keep results of tests.

Such a suite runs when its digest is another than that of its last green run, which writes it to the file `passed` in
the suite's folder. That file is committed with the change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.inputs import files_behind
from tests.support.pythons import ROOMS

__all__ = ["RECORDED", "Recorded", "digest"]

ROOT: Final = Path(__file__).resolve().parents[2]
NAME: Final = "passed"
UNREAD: Final = (".md", ".pyc")


def digest(places: Iterable[Path], root: Path = ROOT) -> str:
    """A digest of the names and contents of all files that matter to the tests."""
    content = hashlib.sha256()
    for place in places:
        # A page among the inputs is one that tests read.
        files = [place] if place.is_file() else [each for each in sorted(place.rglob("*")) if each.suffix not in UNREAD]
        for file in files:
            if file.is_file() and file.name != NAME:
                content.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
                content.update(file.read_bytes())
    return content.hexdigest()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A suite whose green run is on record; `inputs` are the files and folders that its tests depend on."""

    suite: str
    path: Path
    inputs: tuple[Path, ...]
    root: Path = ROOT

    def found(self) -> str:
        """The digest of what is there now."""
        return digest(self.inputs, self.root)

    def passed(self) -> str:
        """The digest that the tests last passed on; empty if there is none."""
        return self.path.read_text().strip() if self.path.exists() else ""


def _below_root(*names: str) -> tuple[Path, ...]:
    return tuple(ROOT / name for name in names)


CLUSTER: Final = Recorded(
    "cluster",
    ROOT / "tests" / "local_cluster" / NAME,
    _below_root("e2e/local_cluster", "tests/local_cluster"),
)
"""The embedded cluster, with all versions and module sums that it is built from, and its tests."""
LOAD: Final = Recorded(
    "load",
    ROOT / "e2e" / "load" / NAME,
    (
        *_below_root("operator", "consumer_image", "crds", "charts", "examples", "requirements", "pyproject.toml"),
        *(each for each in sorted((ROOT / "e2e").iterdir()) if not each.name.startswith("test_")),
    ),
)
"""Scaling and Backfills in the cluster: everything that is installed, and everything that installs and watches it; not
the runner of tests, nor e2e's other tests."""
WORKER: Final = ("consumer_image", "requirements", "pyproject.toml")
"""All that workers' processes and the library are made of."""


def _of_workers(suite: str, *pages: str, tests: Iterable[Path] = ()) -> Recorded:
    """A suite of the library and the worker, which may read some pages and run other tests."""
    folder = ROOT / "tests" / suite
    return Recorded(suite, folder / NAME, (*files_behind(folder, *tests), *_below_root(*WORKER, *pages)))


WORKERS: Final = (
    _of_workers("pythons", tests=ROOMS),
    _of_workers("protocol"),
    _of_workers("broker", "docs/library.md"),
    _of_workers("worker", "README.md", "docs/metrics.md"),
    _of_workers("retries", "docs/retries.md"),
    _of_workers("faults"),
    _of_workers("interop"),
    _of_workers("spark"),
)
"""Suites without the operator: the library and the worker on other versions of Python, with real brokers, with other
clients, and under Spark."""
RECORDED: Final = (CLUSTER, LOAD, *WORKERS)
