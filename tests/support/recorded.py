"""Recorded passes of suites, by a digest of everything that they depend on, like cached test results of build tools.

Such a suite runs if its digest differs from that of its last green run, which writes it to the file `passed` in the
suite's folder. That file is committed with the change.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
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
WORKER_EXTRAS: Final = ("consumer", "laptop", "spark")


def worker_packaging(pyproject: str) -> str:
    """The lines of a pyproject.toml that the worker and its tests depend on: not the operator's packages, nor settings
    of linters."""
    read = tomllib.loads(pyproject)
    project, setuptools = read["project"], read["tool"]["setuptools"]
    extras = project["optional-dependencies"]
    parts = {
        "build": read["build-system"],
        "project": {name: project[name] for name in ("name", "version", "requires-python", "dependencies")},
        "extras": {name: extras[name] for name in WORKER_EXTRAS},
        "scripts": project["scripts"]["fleet-consumer"],
        "packages": [setuptools[table]["fleet_consumer"] for table in ("package-dir", "package-data")],
        "pytest": read["tool"]["pytest"],
    }
    return json.dumps(parts, sort_keys=True)


def digest(places: Iterable[Path], root: Path = ROOT, also: str = "") -> str:
    """A digest of the names and contents of all files that matter to the tests, and of a text."""
    content = hashlib.sha256(also.encode())
    for place in places:
        # A page is an input only if tests read it.
        files = [place] if place.is_file() else [each for each in sorted(place.rglob("*")) if each.suffix not in UNREAD]
        for file in files:
            if file.is_file() and file.name != NAME:
                content.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
                content.update(file.read_bytes())
    return content.hexdigest()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A suite whose green run is recorded.

    - `inputs`: the files and folders that its tests depend on.
    - `packaging`: what they depend on in the file pyproject.toml, if it is not among the inputs.
    """

    suite: str
    path: Path
    inputs: tuple[Path, ...]
    root: Path = ROOT
    packaging: str = ""

    def found(self) -> str:
        """The digest of the present inputs."""
        return digest(self.inputs, self.root, self.packaging)

    def passed(self) -> str:
        """The digest of the last green run; empty without one."""
        return self.path.read_text().strip() if self.path.exists() else ""


def _below_root(*names: str) -> tuple[Path, ...]:
    return tuple(ROOT / name for name in names)


CLUSTER: Final = Recorded(
    "cluster",
    ROOT / "tests" / "local_cluster" / NAME,
    _below_root("e2e/local_cluster", "tests/local_cluster"),
)
"""The embedded cluster, with all versions and module sums that it is built from, and its tests."""
OPERATOR: Final = ROOT / "operator" / "fleet_operator"
INSTALLED: Final = (
    ROOT / "operator" / "Dockerfile",
    *(each for each in sorted(OPERATOR.iterdir()) if each.name not in ("console", "__pycache__")),
    *_below_root("consumer_image", "crds", "charts", "requirements", "pyproject.toml"),
)
"""Everything that is installed, without the console, which is off unless a chart's value turns it on."""
OF_OTHER_SUITES: Final = ("test_", "laptop", "newcomer")
LOAD: Final = Recorded(
    "load",
    ROOT / "e2e" / "load" / NAME,
    (
        *INSTALLED,
        *_below_root(*(f"examples/{name}" for name in ("flights", "scaling", "tables")), "docs/backfill.md"),
        *(each for each in sorted((ROOT / "e2e").iterdir()) if not each.name.startswith(OF_OTHER_SUITES)),
    ),
)
"""Scaling and Backfills in the cluster: everything that is installed, and everything that installs and watches it; not
the runner of tests, nor e2e's other tests."""


def _of_operator(suite: str, *names: str) -> Recorded:
    """A suite that needs programs which take long to build, or a browser."""
    folder = ROOT / "tests" / suite
    return Recorded(suite, folder / NAME, (*INSTALLED, *files_behind(folder), *_below_root(*names)))


NEWCOMER: Final = Recorded(
    "newcomer",
    ROOT / "e2e" / "newcomer" / NAME,
    (
        *INSTALLED,
        *_below_root(
            "examples/quickstart", "docs/quickstart.md", "docs/install.md", "release", "plugin", "e2e/newcomer"
        ),
        *(each for each in sorted((ROOT / "e2e").iterdir()) if each.is_file() and not each.name.startswith("test_")),
        *_below_root("e2e/local_cluster", "e2e/test_walkthrough.py"),
    ),
)
"""The pages that a newcomer types, on a cluster that has nothing: everything that is installed, and its artefacts."""
BUILT: Final = (
    _of_operator("release", "release"),
    _of_operator("monitoring", "dashboards", "examples/alertmanager"),
    _of_operator("console", "operator/fleet_operator/console"),
)
"""Suites with a registry and cosign, with Prometheus and Alertmanager, and with a browser."""
WORKER: Final = ("consumer_image", *(f"requirements/{name}.txt" for name in ("consumer", "spark", "dev")))
"""Everything that workers' processes and the library consist of, with the packaging."""


def _of_workers(suite: str, *pages: str, tests: Iterable[Path] = ()) -> Recorded:
    """A suite of the library and the worker, which may read some pages and run other tests."""
    folder = ROOT / "tests" / suite
    return Recorded(
        suite,
        folder / NAME,
        (*files_behind(folder, *tests), *_below_root(*WORKER, *pages)),
        packaging=worker_packaging((ROOT / "pyproject.toml").read_text()),
    )


WORKERS: Final = (
    _of_workers("pythons", tests=ROOMS),
    _of_workers("protocol"),
    _of_workers("broker", "docs/library.md"),
    _of_workers("worker", "README.md", "docs/laptop.md", "docs/metrics.md"),
    _of_workers("retries", "docs/retries.md"),
    _of_workers("faults"),
    _of_workers("interop"),
    _of_workers("spark"),
    _of_workers("examples", "examples", "e2e/laptop", "e2e/demo", "docs/gallery.md"),
)
"""Suites without the operator: the library and the worker on other versions of Python, with real brokers, with other
clients, and under Spark; the gallery's handlers, and the first run on a laptop."""
RECORDED: Final = (CLUSTER, LOAD, NEWCOMER, *BUILT, *WORKERS)
