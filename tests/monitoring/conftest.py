"""Programs of the suite, built before its first test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring.programs import ALERTMANAGER, PROMETHEUS, ensure_monitoring
from tests.support.programs import API_SERVER, build_before

FOLDER = Path(__file__).parent
BUILDS = (*API_SERVER, lambda: ensure_monitoring(ALERTMANAGER), lambda: ensure_monitoring(PROMETHEUS))


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, FOLDER, BUILDS)
