"""Three brokers for the whole suite, each also behind a proxy; every test leaves them running and in sync."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.faults.proxy import Guillotine, ResettingProxy
from tests.support.kafka_cluster import KafkaCluster


@dataclass(frozen=True, slots=True)
class Proxied:
    """The cluster seen through proxies: every broker advertises the proxies' addresses to clients of that listener."""

    cluster: KafkaCluster
    bootstrap: str
    guillotine: Guillotine


@pytest.fixture(scope="session")
def proxied() -> Iterator[Proxied]:
    guillotine = Guillotine()
    proxies = {node: ResettingProxy(guillotine) for node in (1, 2, 3)}
    try:
        with KafkaCluster(proxied_as={node: proxy.address for node, proxy in proxies.items()}) as cluster:
            for node, proxy in proxies.items():
                proxy.target = cluster.brokers[node].proxied_listener
            yield Proxied(cluster, ",".join(proxy.address for proxy in proxies.values()), guillotine)
    finally:
        for proxy in proxies.values():
            proxy.close()


@pytest.fixture
def cluster(proxied: Proxied) -> Iterator[KafkaCluster]:
    """The cluster, for tests that break it; healed afterwards."""
    yield proxied.cluster
    proxied.cluster.heal()
