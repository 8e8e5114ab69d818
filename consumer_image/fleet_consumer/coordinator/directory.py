"""Which brokers there are, and whom to ask what any of them can answer."""

from __future__ import annotations

from fleet_consumer.net import BrokerAddress
from fleet_consumer.wire.metadata import MetadataResponse


class Directory:
    """Brokers by node id, and one favourite that is asked until it fails.

    Bootstrap addresses stay among the candidates for ever, so a cluster that moved altogether is found again.
    """

    def __init__(self, bootstrap: tuple[BrokerAddress, ...]) -> None:
        self._bootstrap = bootstrap
        self._brokers: dict[int, BrokerAddress] = {}
        self._turn = 0

    def anyone(self) -> BrokerAddress:
        """The broker to ask what any broker knows."""
        candidates = self._candidates()
        return candidates[self._turn % len(candidates)]

    def failed(self, address: BrokerAddress) -> None:
        """`address` did not answer: the next one is asked, if nobody has moved on already."""
        if self.anyone() == address:
            self._turn += 1

    def learn(self, response: MetadataResponse) -> None:
        """Remember the brokers of an answer. An empty list (a broker that just started) teaches nothing."""
        if response.brokers:
            favourite = self.anyone()
            self._brokers = {broker.node_id: BrokerAddress(broker.host, broker.port) for broker in response.brokers}
            candidates = self._candidates()
            self._turn = candidates.index(favourite) if favourite in candidates else 0

    def broker(self, node_id: int) -> BrokerAddress | None:
        """Where a broker listens; None when no answer has named it."""
        return self._brokers.get(node_id)

    def _candidates(self) -> list[BrokerAddress]:
        return list(dict.fromkeys((*self._brokers.values(), *self._bootstrap)))
