"""Requests to brokers: the coordinator, brokers by node id, and any broker of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet_consumer.coordinator.flows import Ask, Where
from fleet_consumer.group.messages import Address, Channel, Send
from fleet_consumer.net import BrokerAddress, Call, NetError, NetworkClient
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.topics import MetadataResponse

DIRECTORY_LANE = "directory"
"""Connection of their own for requests that any broker can answer: a slow broker must not delay heartbeats."""
DIRECTORY_TIMEOUT_S = 10.0
"""Timeout after which the next broker is asked."""

OnAnswer = Callable[[Any], None]
"""Takes a response or a NetError."""


class Directory:
    """Brokers by node id, and the one that is asked until it fails.

    Bootstrap addresses stay candidates forever, so a cluster whose brokers all moved is found again.
    """

    def __init__(self, bootstrap: tuple[BrokerAddress, ...]) -> None:
        self._bootstrap = bootstrap
        self._brokers: dict[int, BrokerAddress] = {}
        self._turn = 0

    def anyone(self) -> BrokerAddress:
        """The broker for requests that any broker can answer."""
        candidates = self._candidates()
        return candidates[self._turn % len(candidates)]

    def failed(self, address: BrokerAddress) -> None:
        """Ask the next broker from now on, unless `address` was replaced already."""
        if self.anyone() == address:
            self._turn += 1

    def learn(self, response: MetadataResponse) -> None:
        """Remember the brokers of a response. An empty list, as a just started broker sends, changes nothing."""
        if response.brokers:
            current = self.anyone()
            self._brokers = {broker.node_id: BrokerAddress(broker.host, broker.port) for broker in response.brokers}
            candidates = self._candidates()
            self._turn = candidates.index(current) if current in candidates else 0

    def broker(self, node_id: int) -> BrokerAddress | None:
        """The address of a broker; None when no response has named it."""
        return self._brokers.get(node_id)

    def _candidates(self) -> list[BrokerAddress]:
        return list(dict.fromkeys((*self._brokers.values(), *self._bootstrap)))


class Requests:
    """The requests of one member in flight. Used by the coordinator thread alone."""

    def __init__(self, client: NetworkClient, bootstrap: tuple[BrokerAddress, ...]) -> None:
        self._client = client
        self._directory = Directory(bootstrap)
        self._calls: list[tuple[Call[Any], OnAnswer]] = []

    def send(self, action: Send, on_answer: OnAnswer) -> None:
        """Send a request of the machine."""
        if action.address is None:
            self._ask_anyone(action.request, on_answer)
        else:
            address = BrokerAddress(*action.address)
            call = self._client.send(address, action.request, lane=action.channel.value, timeout_s=action.timeout_s)
            self._calls.append((call, on_answer))

    def ask(self, ask: Ask, coordinator: Address | None, on_answer: OnAnswer) -> bool:
        """Send a request of a flow; False when the address of its target is unknown."""
        if ask.where is Where.ANY:
            self._ask_anyone(ask.request, on_answer)
            return True
        known = None if coordinator is None else BrokerAddress(*coordinator)
        address = self._directory.broker(ask.where) if isinstance(ask.where, int) else known
        if address is None:
            return False
        self._calls.append((self._client.send(address, ask.request), on_answer))
        return True

    def disconnect(self, address: Address) -> None:
        """Close the member's connections to a coordinator."""
        for channel in Channel:
            self._client.disconnect(BrokerAddress(*address), lane=channel.value)

    def take_ended(self) -> list[tuple[Call[Any], OnAnswer]]:
        """Remove and return the requests that have a response or an error."""
        ended = [entry for entry in self._calls if entry[0].done]
        if ended:
            self._calls = [entry for entry in self._calls if not entry[0].done]
        return ended

    def _ask_anyone(self, request: Any, on_answer: OnAnswer) -> None:
        address = self._directory.anyone()
        call = self._client.send(address, request, lane=DIRECTORY_LANE, timeout_s=DIRECTORY_TIMEOUT_S)

        def on_done(answer: Any) -> None:
            if isinstance(answer, NetError):
                self._directory.failed(address)
            elif isinstance(answer, MetadataResponse):
                self._directory.learn(answer)
                if any(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in answer.topics):
                    # Another broker may know the topic.
                    self._directory.failed(address)
            on_answer(answer)

        self._calls.append((call, on_done))
