"""The broker of the suite `broker`, of its own here; the tests of the first run, which mostly wait, run together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import broker
from tests.support.together import play_together

__all__ = ["broker"]

AT_ONCE = 2
"""Tests that run at a time: a first run has a broker and two workers."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, Path(__file__).parent, AT_ONCE)
