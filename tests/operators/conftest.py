"""Operators of single tests, on one API server: many groups, large objects, refused rights, Backfills.

Each test starts its own operators, which serve all namespaces that there are, and so one test runs at a time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apiserver.conftest import broker, quiet_api, quiet_site
from tests.support.programs import API_SERVER, build_before

__all__ = ["broker", "quiet_api", "quiet_site"]

FOLDER = Path(__file__).parent


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, FOLDER, API_SERVER)
