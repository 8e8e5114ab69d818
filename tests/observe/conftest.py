"""The broker of the suite `broker`, of its own here; most tests wait, and run together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import broker
from tests.support.together import play_together

__all__ = ["broker"]

AT_ONCE = 4
"""Tests that run at a time: each has one to three members or workers."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, Path(__file__).parent, AT_ONCE)
