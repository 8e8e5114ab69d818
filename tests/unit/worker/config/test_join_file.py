"""The hold of a worker's first join, from the mounted file."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fleet_consumer.contract.joins import HOLD_S, JoinStep, render_join
from fleet_consumer.worker.config.mounted_file import join_hold_s

NOW = 1_800_000_000.0


@pytest.fixture
def skip_file(tmp_path: Path) -> str:
    (tmp_path / "join.json").write_text(json.dumps(render_join("uid-1", JoinStep(2, 4, NOW - 4))))
    return str(tmp_path / "skip.json")


def test_worker_of_the_step_holds_its_join(skip_file: str) -> None:
    assert join_hold_s(skip_file, "uid-1", "orders-2", NOW) == pytest.approx(HOLD_S - 4)


@pytest.mark.parametrize("pod", ["orders-1", "orders-4", "laptop", ""])
def test_other_workers_join_at_once(skip_file: str, pod: str) -> None:
    assert join_hold_s(skip_file, "uid-1", pod, NOW) == 0.0


def test_nothing_is_held_without_a_file_or_outside_of_a_pod(tmp_path: Path) -> None:
    assert join_hold_s(str(tmp_path / "skip.json"), "uid-1", "orders-2", NOW) == 0.0
    assert join_hold_s(None, "uid-1", "orders-2", NOW) == 0.0


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 9}'])
def test_unusable_file_holds_nothing_and_is_reported(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "join.json").write_text(content)
    with caplog.at_level(logging.WARNING):
        assert join_hold_s(str(tmp_path / "skip.json"), "uid-1", "orders-2", NOW) == 0.0
    assert "cannot be used" in caplog.text
