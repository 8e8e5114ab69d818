"""A worker that is told to stop ends in time, whatever keeps it: code of the application, or a part of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet_consumer.contract.pod import EXIT_OK
from fleet_consumer.contract.worker_config import parse_config
from fleet_consumer.handlers.configured import make_executor
from fleet_consumer.handlers.loading import Handler
from fleet_consumer.worker import process, supervisor
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.config.settings import identify
from fleet_consumer.worker.http_server import HttpServer
from fleet_consumer.worker.lifecycle.termination import EXIT_HUNG, STOPS, LastWord
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.process import WorkerProcess
from fleet_consumer.worker.session import CLOSE_TIMEOUT_S, WorkerContext
from fleet_consumer.worker.stats import Stats
from tests.support.clock import StillClock
from tests.unit.worker.documents import worker_document

DRAIN_S = 1
LIMIT_S = DRAIN_S + CLOSE_TIMEOUT_S
PATIENCE_S = 5.0


class Stopping:
    """A worker that gets SIGTERM, with a scripted session. Its process's end is recorded, and lets go what kept it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.clock = StillClock()
        self.codes = list[int]()
        self.at_close: Callable[[], object] = lambda: None
        self._folder = folder
        self._stop = threading.Event()
        self._let_go = threading.Event()
        patch.setattr(os, "_exit", self._exit)
        patch.setattr(os, "register_at_fork", lambda **hooks: None)
        patch.setattr(process, "tame_collector", lambda: None)
        patch.setattr(supervisor, "open_session", lambda worker: self._session())

    def run(self, **hooks: Any) -> int:
        config = parse_config(worker_document(drainSeconds=DRAIN_S, httpPort=0, skipFile=None))
        handler = Handler("shop:handle", lambda record: None, **hooks)
        worker = WorkerContext(
            config=config,
            identity=identify(config, {"POD_NAME": "flights-0"}),
            role=Role.MAIN,
            handler=handler,
            executor=make_executor(config.handler, handler, self.clock),
            policy_file=None,
            skip_file=None,
            stats=Stats(),
            watch=Watch(),
            clock=self.clock,
            stop=self._stop,
        )
        last_word = LastWord(self.clock, self._folder / "none", self._folder / "alive")
        return WorkerProcess(worker, last_word, None).run()

    def take(self, seconds: float, *, patience_s: float = PATIENCE_S) -> None:
        """Take so long on the way from the signal to the end, unless the process ends."""
        assert self._stop.wait(PATIENCE_S)
        self.clock.now += seconds
        self._let_go.wait(patience_s)

    def _exit(self, code: int) -> None:
        self.codes.append(code)
        self._let_go.set()
        sys.exit(code)

    def _session(self) -> SimpleNamespace:
        return SimpleNamespace(
            start=lambda: signal.raise_signal(signal.SIGTERM),
            step=lambda: self._stop.wait(PATIENCE_S),
            loop=SimpleNamespace(stop=lambda within_s, gives_up: None),
            close=lambda timeout_s: self.at_close(),
        )


@pytest.fixture
def stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopping]:
    before = {number: signal.getsignal(number) for number in STOPS}
    yield Stopping(tmp_path, monkeypatch)
    for number, handler in before.items():
        signal.signal(number, handler)


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.levelname == "CRITICAL"]


def test_teardown_that_does_not_return_ends_with_its_process(
    stopping: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    stopping.run(teardown=lambda context: stopping.take(LIMIT_S))
    assert set(stopping.codes) == {EXIT_HUNG}
    assert told(caplog)[0] == {"call": "teardown"}


def test_asynchronous_teardown_that_does_not_return_ends_with_its_process(
    stopping: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    async def teardown(context: object) -> None:
        await asyncio.to_thread(stopping.take, LIMIT_S)

    stopping.run(teardown=teardown, asynchronous=True)
    assert set(stopping.codes) == {EXIT_HUNG}
    assert told(caplog)[0] == {"call": "teardown"}


def test_setup_that_does_not_return_ends_with_its_process(stopping: Stopping, caplog: pytest.LogCaptureFixture) -> None:
    def setup(context: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        stopping.take(LIMIT_S)

    stopping.run(setup=setup)
    assert set(stopping.codes) == {EXIT_HUNG}
    assert told(caplog)[0] == {"call": "setup"}


def test_signal_handler_of_the_application_that_does_not_return_ends_with_its_process(
    stopping: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    def a_signal_handler_that_waits(*_: object) -> None:
        stopping.take(LIMIT_S + CLOSE_TIMEOUT_S)

    signal.signal(signal.SIGTERM, a_signal_handler_that_waits)
    stopping.run()
    assert set(stopping.codes) == {EXIT_HUNG}
    assert "a_signal_handler_that_waits" in told(caplog)[0]["stack"]


def test_session_whose_close_does_not_return_ends_with_its_process(
    stopping: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    def a_close_that_waits() -> None:
        stopping.take(LIMIT_S + CLOSE_TIMEOUT_S)

    stopping.at_close = a_close_that_waits
    stopping.run()
    assert set(stopping.codes) == {EXIT_HUNG}
    assert "a_close_that_waits" in told(caplog)[0]["stack"]


def test_close_of_the_http_port_that_does_not_return_ends_with_its_process(
    stopping: Stopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = HttpServer.close

    def slow(server: HttpServer) -> None:
        close(server)
        stopping.take(LIMIT_S + CLOSE_TIMEOUT_S)

    monkeypatch.setattr(HttpServer, "close", slow)
    stopping.run()
    assert set(stopping.codes) == {EXIT_HUNG}


def test_close_that_takes_all_its_time_is_an_orderly_end(stopping: Stopping) -> None:
    """Of a session whose brokers are away; the handler's `teardown` is still called."""
    torn = list[object]()
    stopping.at_close = lambda: stopping.take(LIMIT_S, patience_s=0.6)
    assert stopping.run(teardown=torn.append) == EXIT_OK
    assert stopping.codes == []
    assert len(torn) == 1
