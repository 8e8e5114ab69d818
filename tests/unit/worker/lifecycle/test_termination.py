"""A process that has to end ends, also where nothing can be written any more."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fleet_consumer.worker.lifecycle import termination
from fleet_consumer.worker.lifecycle.termination import EXIT_HUNG, NOT_DRAINED, end_process


class Ended(BaseException):
    """The process's end."""


class ClosedStream:
    """A standard error that nobody reads."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise BrokenPipeError("nobody reads")


@pytest.fixture
def message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The termination message of a process whose end raises `Ended` with the exit code."""
    path = tmp_path / "termination-log"
    path.touch()

    def ends(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", ends)
    monkeypatch.setattr(termination.write_termination, "__defaults__", (path,))
    return path


def test_forced_end_leaves_its_reason(message: Path) -> None:
    with pytest.raises(Ended) as ended:
        end_process(NOT_DRAINED, {"call": "teardown"})
    assert ended.value.args == (EXIT_HUNG,)
    assert json.loads(message.read_text()) == {
        "ok": False,
        "reason": "HandlerTimeout",
        "message": "the handler did not end within the drain time: {'call': 'teardown'}",
        "records": [],
    }


def test_process_ends_on_a_full_disk(message: Path) -> None:
    message.unlink()
    message.symlink_to("/dev/full")
    with pytest.raises(Ended) as ended:
        end_process(NOT_DRAINED, {})
    assert ended.value.args == (EXIT_HUNG,)


def test_process_ends_when_nobody_reads_its_errors(message: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", ClosedStream())
    with pytest.raises(Ended) as ended:
        end_process(NOT_DRAINED, {})
    assert ended.value.args == (EXIT_HUNG,)
