"""Clients for tests: short patience, closed at the end, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.net import BrokerAddress, Call, ConnectionSettings, NetworkClient
from fleet_consumer.wire.groups import ListGroupsRequest, ListGroupsResponse
from tests.support.waiting import eventually

LIST_GROUPS = ListGroupsRequest(states_filter=(), types_filter=())
NO_GROUPS = ListGroupsResponse(error_code=0, groups=())
PATIENCE_S = 10.0
"""For what must succeed: long enough for a busy machine."""


def settings(*bootstrap: BrokerAddress, **changes: Any) -> ConnectionSettings:
    values: dict[str, Any] = {
        "bootstrap_servers": tuple(str(address) for address in bootstrap),
        "client_id": "test",
        "reconnect_backoff_ms": 10,
        "reconnect_backoff_max_ms": 50,
    }
    return ConnectionSettings(**(values | changes))


@contextlib.contextmanager
def connected(*bootstrap: BrokerAddress, clock: Clock | None = None, **changes: Any) -> Iterator[NetworkClient]:
    """A client that must leave neither a descriptor nor a thread behind."""
    descriptors = len(os.listdir("/proc/self/fd"))
    client = NetworkClient(settings(*bootstrap, **changes), clock or SystemClock())
    try:
        yield client
    finally:
        client.close()
    eventually(lambda: not _lookups(), timeout_s=PATIENCE_S, what="name lookups to end")
    # The broker's side of each connection lives in this process too, and is closed a moment after ours.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, timeout_s=PATIENCE_S, what="sockets to close")


def finish(client: NetworkClient, *calls: Call[Any]) -> None:
    """Poll until all calls are done."""
    for _ in range(10_000):
        if all(call.done for call in calls):
            return
        client.poll(PATIENCE_S)
    raise AssertionError("calls never end")


def _lookups() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("resolve ")]
