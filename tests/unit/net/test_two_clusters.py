"""A bootstrap list whose addresses belong to two clusters: requests stay with one of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet_consumer.net import AllBrokersUnreachable, AnotherCluster, NetworkClient, NoBrokersListed
from fleet_consumer.wire.groups import FindCoordinatorRequest, ListGroupsRequest
from fleet_consumer.wire.topics import MetadataRequest, MetadataResponse, MetadataResponseBroker
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected
from tests.unit.net.scripted_broker import SILENT, ScriptedBroker


def belongs(broker: ScriptedBroker, cluster_id: str) -> None:
    """Have the broker be the only one of its cluster."""
    itself = MetadataResponseBroker(node_id=0, host=broker.address.host, port=broker.address.port)
    broker.on(MetadataRequest, lambda _: MetadataResponse(brokers=(itself,), cluster_id=cluster_id, topics=()))
    broker.on(ListGroupsRequest, lambda _: NO_GROUPS)


@pytest.fixture
def ours() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        belongs(broker, "ours")
        yield broker


@pytest.fixture
def theirs() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        belongs(broker, "theirs")
        yield broker


@pytest.fixture
def client(ours: ScriptedBroker, theirs: ScriptedBroker) -> Iterator[NetworkClient]:
    with connected(theirs.address, ours.address) as client:
        yield client


def test_metadata_of_the_wanted_cluster_is_found_whichever_broker_comes_first(
    client: NetworkClient, ours: ScriptedBroker
) -> None:
    for _ in range(10):
        with client.one_cluster("ours"):
            assert client.metadata(timeout_s=PATIENCE_S).cluster_id == "ours"
        assert dict(client.brokers) == {0: ours.address}


def test_request_to_any_broker_goes_to_no_broker_that_metadata_did_not_list(
    client: NetworkClient, ours: ScriptedBroker, theirs: ScriptedBroker
) -> None:
    with client.one_cluster("ours"):
        client.metadata(timeout_s=PATIENCE_S)
        ours.on(ListGroupsRequest, lambda _: SILENT)
        ours.on(FindCoordinatorRequest, lambda _: SILENT)
        with pytest.raises(AllBrokersUnreachable):
            client.call(None, LIST_GROUPS, timeout_s=0.3)
        with pytest.raises(AllBrokersUnreachable):
            client.find_coordinators(["orders"], timeout_s=0.3)
    assert not [asked for asked in theirs.asked if not isinstance(asked.request, MetadataRequest)]


def test_cluster_that_is_not_there_is_reported_with_the_one_that_is(
    client: NetworkClient, theirs: ScriptedBroker
) -> None:
    with (
        client.one_cluster("third"),
        pytest.raises(AnotherCluster, match=r"belongs to Kafka cluster .* and not to third"),
    ):
        client.metadata(timeout_s=PATIENCE_S)
    assert not client.brokers


def test_cluster_of_the_first_response_is_kept(
    client: NetworkClient, ours: ScriptedBroker, theirs: ScriptedBroker
) -> None:
    with client.one_cluster():
        first = client.metadata(timeout_s=PATIENCE_S).cluster_id
        gone = ours if first == "ours" else theirs
        gone.on(MetadataRequest, lambda _: SILENT)
        with pytest.raises(AllBrokersUnreachable, match="belongs to Kafka cluster"):
            client.metadata(timeout_s=0.3)
    assert client.metadata(timeout_s=1.0).cluster_id != first, "afterwards any cluster may be found"


@pytest.mark.parametrize("cluster_id", ["ours", None])
def test_answer_without_brokers_is_no_proof_of_the_cluster(
    client: NetworkClient, ours: ScriptedBroker, theirs: ScriptedBroker, cluster_id: str | None
) -> None:
    """A broker that is still starting knows its cluster, and none of its brokers.

    Those known from before would stay, and here they are of the other cluster.
    """
    with client.one_cluster("theirs"):
        client.metadata(timeout_s=PATIENCE_S)
    for broker in (ours, theirs):
        broker.on(MetadataRequest, lambda _: MetadataResponse(brokers=(), cluster_id="ours", topics=()))
    before = len(ours.asked)
    with client.one_cluster(cluster_id), pytest.raises(AllBrokersUnreachable, match="lists no brokers") as refused:
        client.metadata(timeout_s=0.3)
    assert {type(failure) for failure in refused.value.failures} == {NoBrokersListed}
    assert len(ours.asked) - before <= 10, "it is asked again after a pause"


def test_broker_that_has_started_proves_its_cluster(client: NetworkClient, ours: ScriptedBroker) -> None:
    answers = iter([MetadataResponse(brokers=(), cluster_id="ours", topics=())])
    itself = MetadataResponseBroker(node_id=0, host=ours.address.host, port=ours.address.port)
    started = MetadataResponse(brokers=(itself,), cluster_id="ours", topics=())
    ours.on(MetadataRequest, lambda _: next(answers, started))
    with client.one_cluster("ours"):
        assert client.metadata(timeout_s=PATIENCE_S).brokers
    assert dict(client.brokers) == {0: ours.address}
