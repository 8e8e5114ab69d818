"""A pytest plugin that replaces the version of Kafka; `tests.versions` loads it before the first conftest.

The version is in the environment variable FLEET_TEST_KAFKA; without it, nothing is replaced. Tests that need a newer
version are expected to fail.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from e2e.local_cluster import jars, versions
from tests.versions.lanes import reason_to_fail

VARIABLE: Final = "FLEET_TEST_KAFKA"
POM: Final = Path(__file__).with_name("pom.xml")
wanted = os.environ.get(VARIABLE, versions.KAFKA)
if wanted != versions.KAFKA:
    versions.KAFKA = wanted
    jars.KAFKA = replace(jars.KAFKA, version=wanted, pom=POM, properties={"kafka.version": wanted})


def pytest_report_header() -> str:
    """Name the version in the first lines of a run."""
    return f"Kafka {wanted}"


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark the tests that must fail on this version; one that passes fails the run."""
    for item in items:
        reason = reason_to_fail(wanted, item.nodeid)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
