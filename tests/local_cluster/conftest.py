"""Clusters of this suite's own, next to those of other suites and of developers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.programs import CLUSTER, build_before

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.skipif(os.geteuid() != 0, reason="the embedded cluster needs root"))


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, FOLDER, CLUSTER)
