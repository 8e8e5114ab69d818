"""A worker hears SIGTERM and SIGINT whatever its application installs, and the application hears them as well."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fleet_consumer.worker.lifecycle.termination import STOPS, Signals, end_before_work


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def defaults() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("number", STOPS)
def test_signal_asks_for_an_orderly_end(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    defaults()
    signals = Signals()
    signals.keep()
    signal.raise_signal(number)
    assert signals.asked
    assert not caplog.records


@pytest.mark.parametrize("installed", ["before", "after"])
def test_signal_handler_of_the_application_is_chained_and_reported(
    installed: str, caplog: pytest.LogCaptureFixture
) -> None:
    defaults()
    heard = list[int]()
    signals = Signals()
    if installed == "after":
        signals.keep()
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    signals.keep()
    signals.keep()
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    signal.raise_signal(signal.SIGTERM)
    assert signals.asked
    assert heard == [signal.SIGTERM]


def test_signal_ignored_by_the_application_is_handled_again(caplog: pytest.LogCaptureFixture) -> None:
    defaults()
    signals = Signals()
    signals.keep()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signals.keep()
    assert len(caplog.records) == 1
    signal.raise_signal(signal.SIGTERM)
    assert signals.asked


def test_application_that_ends_itself_on_a_signal_interrupts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    defaults()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    signals = Signals()
    signals.keep()
    caplog.clear()
    signal.raise_signal(signal.SIGTERM)
    assert signals.asked
    signals.report()
    signals.report()
    (line,) = caplog.records
    assert line.levelno == logging.ERROR


def test_child_gets_the_defaults_and_the_applications_handlers() -> None:
    defaults()

    def mine(*_: object) -> None:
        """A handler of the application."""

    signal.signal(signal.SIGTERM, mine)
    signals = Signals()
    signals.keep()
    signals.release_in_child()
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_application_that_calls_the_handler_before_its_own_is_called_once() -> None:
    defaults()
    heard = list[int]()
    signals = Signals()
    signals.keep()
    before = signal.getsignal(signal.SIGTERM)
    assert callable(before)

    def polite(number: int, frame: object) -> None:
        heard.append(number)
        before(number, None)

    signal.signal(signal.SIGTERM, polite)
    signals.keep()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    signals.report()
    assert heard == [signal.SIGTERM] * 2


def test_application_that_installs_its_handler_again_and_again_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    defaults()
    signals = Signals()
    signals.keep()
    for _ in range(3):
        signal.signal(signal.SIGTERM, lambda *_: None)
        signals.keep()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("polite", [False, True])
def test_handler_that_ends_a_process_before_its_worker_listens_is_over_then(
    polite: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where code that was imported meanwhile has put its own handler before it, and calls it."""
    defaults()
    signal.signal(signal.SIGTERM, end_before_work)
    if polite:
        signal.signal(signal.SIGTERM, lambda number, frame: end_before_work(number, frame))
    signals = Signals()
    signals.keep()
    assert len(caplog.records) == (1 if polite else 0)
    signal.raise_signal(signal.SIGTERM)
    assert signals.asked


def test_process_ends_at_once_while_no_worker_listens() -> None:
    code = (
        "import signal; from fleet_consumer.worker.lifecycle.termination import end_before_work; "
        "signal.signal(signal.SIGTERM, end_before_work); signal.raise_signal(signal.SIGTERM); raise SystemExit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
