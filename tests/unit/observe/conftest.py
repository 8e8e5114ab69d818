"""Fixtures of the observers' tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from fleet_operator.observe.subscriptions import ObserverSettings
from tests.support.waiting import eventually
from tests.unit.observe.ears import observer_threads


@pytest.fixture
def nobody() -> Iterator[ObserverSettings]:
    """Settings for something that is no broker: it answers every connection with nonsense, at once."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"\xff" * 64)

    thread = threading.Thread(target=answer, name="nobody")
    thread.start()
    yield ObserverSettings(bootstrap_servers=(f"127.0.0.1:{listening.getsockname()[1]}",), interval_seconds=0.2)
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Observers of one test do not run on during the next one, which counts them."""
    yield
    eventually(lambda: not observer_threads(), timeout_s=30, what="the observers of this test to end")
