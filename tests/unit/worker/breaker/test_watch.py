"""Retry workers hear of an open breaker for as long as there is one, whatever befalls those who listen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.breaker_state import open_breaker_state
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.worker.breaker import watch as breaker_watch
from fleet_consumer.worker.breaker.watch import BreakerWatch
from tests.support.waiting import eventually

FAR_MS = 9_000_000_000_000


class Brokers:
    """The network of a watch: the first connections meet something that nobody has thought of."""

    bugs = 2

    def __init__(self, *_: Any) -> None:
        if Brokers.bugs:
            Brokers.bugs -= 1
            raise RuntimeError("a bug")

    def find_coordinators(self, groups: list[str], *, timeout_s: float) -> dict[str, Any]:
        return {group: SimpleNamespace(address=None) for group in groups}

    def call(self, *_: Any, timeout_s: float) -> Any:
        part = SimpleNamespace(error_code=0, partition_index=0, metadata=open_breaker_state(FAR_MS))
        topic = SimpleNamespace(name="orders", partitions=[part])
        return SimpleNamespace(groups=[SimpleNamespace(error_code=0, topics=[topic])])

    def close(self) -> None:
        """Nothing is open."""


def test_watch_survives_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker_watch, "NetworkClient", Brokers)
    monkeypatch.setattr(breaker_watch, "ERROR_INTERVAL_S", 0.01)
    clock = SystemClock()
    watch = BreakerWatch(ConnectionSettings(bootstrap_servers=("127.0.0.1:9",), client_id="w"), "g", clock)
    watch.start()
    try:
        watch.follow(True)
        eventually(lambda: watch.breakers().open_until > clock.wall(), timeout_s=30, what="the open breaker is seen")
    finally:
        watch.close()
    watch.follow(False)
    assert watch.breakers() == (0.0, 0.0)
