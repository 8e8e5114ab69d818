"""A digest of the embedded cluster, which tells whether its tests have passed on it.

These tests take minutes, and what they test is a tool of the other suites, which use it in every run. So they run only
when it has changed: their green run writes a digest of it to `tests/local_cluster/passed`, which is committed with the
change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["CLUSTER_FILES", "PASSED", "digest", "passed_digest"]

ROOT: Final = Path(__file__).resolve().parents[2]
PASSED: Final = ROOT / "tests" / "local_cluster" / "passed"
CLUSTER_FILES: Final = (ROOT / "e2e" / "local_cluster", ROOT / "tests" / "local_cluster")
"""The cluster with all versions and module sums that it is built from, and its tests."""


def digest(folders: Iterable[Path] = CLUSTER_FILES) -> str:
    """A digest of the names and contents of all files that matter to the tests."""
    content = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.suffix not in (".md", ".pyc") and file.name != PASSED.name:
                content.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
                content.update(file.read_bytes())
    return content.hexdigest()


def passed_digest(path: Path = PASSED) -> str:
    """The digest that the tests last passed on; empty if there is none."""
    return path.read_text().strip() if path.exists() else ""
