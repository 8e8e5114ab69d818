"""The broker directory: one broker until it fails, and the bootstrap list forever."""

from __future__ import annotations

from fleet_consumer.coordinator.requests import Directory
from fleet_consumer.net import BrokerAddress
from fleet_consumer.wire.topics import MetadataResponse, MetadataResponseBroker

A, B, C = (BrokerAddress(host, 9092) for host in "abc")


def answer(*addresses: BrokerAddress) -> MetadataResponse:
    brokers = tuple(
        MetadataResponseBroker(node_id=number, host=address.host, port=address.port)
        for number, address in enumerate(addresses, 1)
    )
    return MetadataResponse(brokers=brokers, topics=())


def test_next_broker_is_asked_after_a_failure_and_all_are_asked() -> None:
    directory = Directory((A, B))
    assert directory.anyone() == A
    directory.skip_failed(A)
    assert directory.anyone() == B
    directory.skip_failed(A)  # a late failure of one that is not asked any more
    assert directory.anyone() == B
    directory.skip_failed(B)
    assert directory.anyone() == A


def test_favourite_stays_when_brokers_become_known() -> None:
    directory = Directory((A, B))
    directory.skip_failed(A)
    directory.learn(answer(C, B))
    assert directory.anyone() == B
    assert directory.broker(1) == C
    assert directory.broker(7) is None


def test_cluster_that_moved_is_found_again_through_the_bootstrap_list() -> None:
    directory = Directory((A,))
    directory.learn(answer(B, C))
    asked = []
    for _ in range(3):
        asked.append(directory.anyone())
        directory.skip_failed(directory.anyone())
    assert set(asked) == {A, B, C}


def test_empty_metadata_answer_changes_nothing() -> None:
    directory = Directory((A,))
    directory.learn(answer(B))
    directory.learn(answer())
    assert directory.broker(1) == B
