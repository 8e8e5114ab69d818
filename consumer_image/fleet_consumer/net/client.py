"""The client of a whole cluster: requests in, answers out, connections kept behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.net.call import Call
from fleet_consumer.net.settings import BrokerAddress, ConnectionSettings
from fleet_consumer.wire.errors import KafkaError
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.metadata import MetadataResponse

ResponseT = TypeVar("ResponseT", bound=Response)


class Coordinator(NamedTuple):
    """The broker that coordinates a group."""

    node_id: int
    address: BrokerAddress


class NetworkClient:
    """Talks to the brokers of one cluster, from one thread; only `wakeup` may be called from any.

    The constructor opens and starts nothing. A lane is a connection of its own to the same broker.
    """

    def __init__(self, settings: ConnectionSettings, clock: Clock = SystemClock()) -> None: ...

    @property
    def brokers(self) -> Mapping[int, BrokerAddress]:
        """The brokers by node id, as the last metadata answer told; empty before the first."""
        ...

    def send(
        self,
        address: BrokerAddress,
        request: Request[ResponseT],
        *,
        lane: str = "main",
        timeout_s: float | None = None,
    ) -> Call[ResponseT]:
        """Put a request on its way; `poll` moves it. Never blocks; what fails at once is told through the call."""
        ...

    def poll(self, timeout_s: float) -> None:
        """Do I/O and time-outs until a call ends, somebody calls `wakeup`, or `timeout_s` seconds are over."""

    def wakeup(self) -> None:
        """Make the current or the next `poll` return at once. Safe from any thread, and after `close`."""

    def call(
        self, address: BrokerAddress | None, request: Request[ResponseT], *, lane: str = "main", timeout_s: float
    ) -> ResponseT:
        """Send and wait for the answer; None asks any broker, trying one after the other. Raises NetError."""
        ...

    def metadata(self, topics: Sequence[str] | None = (), *, timeout_s: float) -> MetadataResponse:
        """Ask any broker for brokers and topics (None: all topics), and remember the brokers. Raises NetError."""
        ...

    def find_coordinators(self, group_ids: Sequence[str], *, timeout_s: float) -> dict[str, Coordinator | KafkaError]:
        """The coordinator of each group, or why there is none just now. Raises NetError."""
        ...

    def close(self) -> None:
        """Close all connections; calls under way end with Disconnected. May be called again."""
