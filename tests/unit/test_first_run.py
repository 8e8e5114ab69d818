"""The verdict of `make try` on its totals, and its exit code."""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from subprocess import CalledProcessError

import pytest
from confluent_kafka import KafkaException

from e2e.demo.fleet import Count
from e2e.laptop import cli
from e2e.laptop.run import adds_up
from e2e.laptop.shell import Failed


@pytest.mark.parametrize(
    ("done", "failed", "lost", "duplicated", "unknown", "verdict"),
    [
        (90, 10, 0, 0, 0, True),
        (90, 10, 0, 3, 0, True),  # after a killed worker, records come twice
        (89, 10, 1, 0, 0, False),
        (90, 10, 0, 0, 1, False),
        (91, 9, 0, 0, 0, False),
    ],
)
def test_totals_add_up_if_each_flight_ended_in_its_topic(
    done: int, failed: int, lost: int, duplicated: int, unknown: int, verdict: bool
) -> None:
    count = Count(given=100, done=done, failed=failed, lost=lost, duplicated=duplicated, unknown=unknown)
    assert adds_up(count, given=100, failed=10) is verdict


@pytest.mark.parametrize(("exact", "code"), [(True, 0), (False, 1)])
def test_exit_code_tells_totals_that_do_not_add_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], exact: bool, code: int
) -> None:
    class Broker(nullcontext[None]):
        bootstrap = "nowhere:1"

    class Played:
        def __init__(self, _folder: Path, _bootstrap: str) -> None: ...

        def play(self) -> bool:
            return exact

    for name in ("compressed_csv", "quick_jvm"):
        monkeypatch.setattr(cli, name, lambda: None)
    monkeypatch.setattr(cli, "KafkaBroker", Broker)
    monkeypatch.setattr(cli, "FirstRun", Played)
    assert cli.run(tmp_path, time.monotonic(), keep=False) == code
    assert ("do not add up" in capsys.readouterr().err) is not exact


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CalledProcessError(1, ["pip"]), "could not be fetched"),
        (KafkaException("down"), "does not answer"),
        (Failed("every worker has ended"), "every worker has ended"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_failed_step_ends_with_one_message_and_removes_the_folder(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    folders: list[Path] = []

    def fails(folder: Path, _started: float, *, keep: bool) -> int:
        assert tempfile.gettempdir() == str(folder), "the broker's files are in the folder too"
        folders.append(folder)
        raise error

    monkeypatch.setattr(cli, "run", fails)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match=message):
        cli.main([])
    assert not folders[0].exists()
