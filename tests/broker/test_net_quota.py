"""A real broker's request quota: a client above it is throttled, on both sides (KIP-219)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet_consumer import Consumer
from fleet_consumer.net import ConnectionSettings, NetworkClient, RequestTimedOut, parse_address
from fleet_consumer.wire.groups import ListGroupsRequest, ListGroupsResponse
from tests.broker.members import create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PATIENCE_S = 240.0
THROTTLED = "greedy"
LIST_GROUPS = ListGroupsRequest(states_filter=(), types_filter=())


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """A broker that gives clients of one name a hundredth of one thread's time."""
    with KafkaBroker(properties={"group.min.session.timeout.ms": "1000"}) as running:
        running.tool(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", running.bootstrap, "--alter", "--add-config", "request_percentage=1"),
            *("--entity-type", "clients", "--entity-name", THROTTLED),
        )
        yield running


def test_muted_client_holds_its_requests_back_and_keeps_its_connection(broker: KafkaBroker) -> None:
    address = parse_address(broker.bootstrap)
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id=THROTTLED))
    try:

        def throttled() -> ListGroupsResponse | None:
            answer = client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S)
            return answer if answer.throttle_time_ms >= 500 else None

        eventually(throttled, timeout_s=PATIENCE_S, what="the broker to throttle", poll_s=0.001)
        # Sent in spite of it, the request would wait at the broker, and its time-out would cost the connection.
        with pytest.raises(RequestTimedOut, match="not sent, the client is throttled by the broker's quota"):
            client.call(address, LIST_GROUPS, timeout_s=0.1)
        assert client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S).error_code == 0
    finally:
        client.close()


def test_throttled_member_keeps_its_membership_and_reads_everything(broker: KafkaBroker) -> None:
    """Both planes are throttled: heartbeats, commits, and librdkafka's fetches."""
    topic = create_topic(broker.bootstrap, 2)
    expected = sorted(produce(broker.bootstrap, topic, 2, 500))
    base = settings(broker.bootstrap, unique("group"), session_timeout_ms=20_000, max_poll_records=50)
    greedy = ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id=THROTTLED)
    lost: list[object] = []
    with Consumer(replace(base, connection=greedy)) as consumer:
        consumer.subscribe([topic], on_lost=lost.append)
        seen: list[tuple[int, int]] = []

        def enough() -> bool:
            seen.extend((record.partition, record.offset) for record in consumer.poll(0.5))
            return len(seen) >= len(expected)

        eventually(enough, timeout_s=PATIENCE_S, what="all records", poll_s=0.001)
        consumer.commit(timeout_s=PATIENCE_S)
        assert consumer.holds_session()
    assert sorted(seen) == expected
    assert not lost
