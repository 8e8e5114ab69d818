"""Servers that the gallery's handlers talk to, and the environment that their pods would have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.gallery.packages import GALLERY, ensure_packages
from tests.examples.gallery.postgres import Postgres
from tests.examples.gallery.service import Service
from tests.support.object_store import ObjectStore

__all__: list[str] = []


@pytest.fixture(scope="session")
def packages() -> Iterator[Path]:
    """The packages of the examples, on the import path after the project's own."""
    before = list(sys.path)
    folder = ensure_packages()
    sys.path.append(str(folder))
    yield folder
    sys.path[:] = [each for each in before if each != str(GALLERY)]


@pytest.fixture(scope="session")
def postgres(packages: Path) -> Iterator[Postgres]:
    with Postgres(packages) as running:
        yield running


@pytest.fixture(scope="session")
def object_store(packages: Path) -> Iterator[ObjectStore]:
    with ObjectStore() as running:
        yield running


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as running:
        yield running
