"""Finding brokers and coordinators: dead addresses, moved clusters, names, and how often a dead one is tried."""

from __future__ import annotations

import random
import socket
import threading
import time
from typing import Any

import pytest

from fleet_consumer.net import (
    AllBrokersUnreachable,
    BrokerAddress,
    ConnectFailed,
    ConnectionSettings,
    Coordinator,
    KafkaError,
    SaslSettings,
    parse_address,
)
from fleet_consumer.net.lane import ReconnectPause
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
    ListGroupsRequest,
)
from fleet_consumer.wire.topics import MetadataRequest, MetadataResponse, MetadataResponseBroker
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected, finish, settings
from tests.unit.net.scripted_broker import Answer, Asked, ScriptedBroker


def dead_address() -> BrokerAddress:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return BrokerAddress("127.0.0.1", server.getsockname()[1])


def test_one_living_bootstrap_address_is_enough() -> None:
    dead = [dead_address() for _ in range(3)]
    with ScriptedBroker() as broker, connected(*dead, broker.address) as client:
        for _ in range(5):
            assert client.metadata(timeout_s=PATIENCE_S).cluster_id == "scripted"
        assert dict(client.brokers) == {0: broker.address}
        assert broker.connections == 1


def test_dead_cluster_is_reported_with_every_address_and_its_failure() -> None:
    dead = [dead_address() for _ in range(2)]
    with connected(*dead) as client:
        begun = time.monotonic()
        with pytest.raises(AllBrokersUnreachable) as caught:
            client.metadata(timeout_s=0.4)
        assert "answered within 0.4 s: " in str(caught.value), "and not within what is left of it"
        assert 0.4 <= time.monotonic() - begun < PATIENCE_S
        assert {failure.address for failure in caught.value.failures} == set(dead)
        for address in dead:
            assert f"broker {address} cannot be reached: Connection refused" in str(caught.value)


def test_refused_connection_fails_the_call_at_once() -> None:
    dead = dead_address()
    with connected(dead) as client:
        begun = time.monotonic()
        with pytest.raises(ConnectFailed, match="Connection refused"):
            client.call(dead, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert time.monotonic() - begun < PATIENCE_S / 2


def test_cluster_with_all_brokers_moved_is_found_through_the_bootstrap_address() -> None:
    with ScriptedBroker() as bootstrap, connected(bootstrap.address) as client:
        gone = dead_address()
        elsewhere = MetadataResponseBroker(node_id=3, host=gone.host, port=gone.port)
        bootstrap.on(MetadataRequest, lambda _: MetadataResponse(brokers=(elsewhere,), topics=()))
        client.metadata(timeout_s=PATIENCE_S)
        assert dict(client.brokers) == {3: gone}
        bootstrap.hang_up_all()
        bootstrap.on(MetadataRequest, lambda _: bootstrap.metadata())
        client.metadata(timeout_s=PATIENCE_S)
        assert dict(client.brokers) == {0: bootstrap.address}


def test_answer_without_brokers_does_not_make_the_client_forget_those_it_knows() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        client.metadata(timeout_s=PATIENCE_S)
        broker.on(MetadataRequest, lambda _: MetadataResponse(brokers=(), topics=()))
        client.metadata(timeout_s=PATIENCE_S)
        assert dict(client.brokers) == {0: broker.address}


def test_metadata_never_creates_topics() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        client.metadata(["a", "b"], timeout_s=PATIENCE_S)
        client.metadata(None, timeout_s=PATIENCE_S)
        client.metadata(timeout_s=PATIENCE_S)
        asked = [request.request for request in broker.asked]
        assert [request.allow_auto_topic_creation for request in asked] == [False] * 3
        assert [None if r.topics is None else [t.name for t in r.topics] for r in asked] == [["a", "b"], None, []]


def coordinators(asked: Asked) -> Answer:
    """Groups whose name begins with "lost" have no coordinator, those with "left" are left out."""
    keys = [key for key in asked.request.coordinator_keys if not key.startswith("left")]
    return FindCoordinatorResponse(
        coordinators=tuple(
            FindCoordinatorResponseCoordinator(
                key=key,
                node_id=7,
                host="b7",
                port=9,
                error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE if key.startswith("lost") else 0,
                error_message="none yet" if key.startswith("lost") else None,
            )
            for key in keys
        )
    )


def test_coordinators_are_found_in_batches_and_every_group_gets_an_answer() -> None:
    groups = [f"group-{number}" for number in range(2_500)] + ["lost", "left", "group-1", "lost"]
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(FindCoordinatorRequest, coordinators)
        found = client.find_coordinators(groups, timeout_s=PATIENCE_S)
        assert set(found) == set(groups)
        assert found["group-2499"] == Coordinator(7, BrokerAddress("b7", 9))
        lost, left = found["lost"], found["left"]
        assert isinstance(lost, KafkaError)
        assert (lost.code, lost.retriable) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, True)
        assert str(lost) == "coordinator of group 'lost': COORDINATOR_NOT_AVAILABLE (15): none yet"
        assert isinstance(left, KafkaError)
        assert [len(asked.request.coordinator_keys) for asked in broker.asked] == [1000, 1000, 502]


def test_no_groups_need_no_question() -> None:
    with connected(dead_address()) as client:
        assert client.find_coordinators([], timeout_s=0.1) == {}


def test_unknown_host_name_is_distinguished_from_a_dead_broker() -> None:
    address = BrokerAddress("no-such-broker.invalid", 9092)
    with connected(address) as client:
        with pytest.raises(ConnectFailed, match="no-such-broker") as caught:
            client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert caught.value.reason == "NameNotResolved"


@pytest.mark.parametrize("host", ["", "a" * 300, "nul\0byte", "..", "\ud800", "300.1.1.1"])
def test_invalid_advertised_host_fails_only_the_call(host: str) -> None:
    with connected(dead_address(), connect_timeout_ms=2_000) as client, pytest.raises(ConnectFailed):
        client.call(BrokerAddress(host, 99_999), LIST_GROUPS, timeout_s=PATIENCE_S)


def test_slow_name_lookup_stops_neither_other_connections_nor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real, release = socket.getaddrinfo, threading.Event()

    def slow(host: str, *args: Any, **options: Any) -> Any:
        if host == "slow.example":
            release.wait(PATIENCE_S)
            raise socket.gaierror("released")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with ScriptedBroker() as broker, connected(broker.address, connect_timeout_ms=300) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        hanging = client.send(BrokerAddress("slow.example", 1), LIST_GROUPS)
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        still_waiting = not hanging.done
        finish(client, hanging)
        assert still_waiting
        assert isinstance(hanging.error, ConnectFailed)
        assert "looking up the name" in str(hanging.error)
        release.set()


def test_name_with_a_dead_and_a_living_address_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        dead = dead_address()
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", tuple(address)) for address in (dead, broker.address)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert client.call(BrokerAddress("both.example", 1), LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS


def test_backoff_doubles_to_its_limit_with_jitter_and_starts_again_after_success() -> None:
    pause = ReconnectPause(
        settings(dead_address(), reconnect_backoff_ms=100, reconnect_backoff_max_ms=1_500), random.Random(1)
    )
    delays = []
    for _ in range(50):
        pause.record_failure(ConnectFailed("x"), now=100.0)
        delays.append(pause.retry_at - 100.0)
    for delay, middle in zip(delays, [0.1, 0.2, 0.4, 0.8, *[1.5] * 46], strict=True):
        assert 0.8 * middle <= delay <= 1.2 * middle
    assert len(set(delays[4:])) > 40
    pause.succeeded()
    pause.record_failure(ConnectFailed("x"), now=100.0)
    assert pause.retry_at - 100.0 <= 0.12


def test_dead_broker_is_not_hammered() -> None:
    """A caller that retries at once is slowed down by the backoff of the address."""
    dead = dead_address()
    with connected(dead, reconnect_backoff_ms=50, reconnect_backoff_max_ms=100) as client:
        begun, attempts = time.monotonic(), 0
        while time.monotonic() - begun < 0.6:
            with pytest.raises(ConnectFailed):
                client.call(dead, LIST_GROUPS, timeout_s=PATIENCE_S)
            attempts += 1
        assert 3 <= attempts <= 14


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("broker:9093", ("broker", 9093)),
        (" broker ", ("broker", 9092)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:9094", ("::1", 9094)),
        ("[fe80::1]", ("fe80::1", 9092)),
    ],
)
def test_bootstrap_texts_are_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert parse_address(str(parse_address(text))) == address


@pytest.mark.parametrize("text", ["", ":9092", "b:0", "b:65536", "b:x", "b:-1", "::1", "b b:1", "http://b:1", "b:١"])
def test_bootstrap_text_that_names_no_broker_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port, such as"):
        ConnectionSettings(bootstrap_servers=(text,), client_id="c")


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="bootstrap_servers is empty"):
        ConnectionSettings(bootstrap_servers=(), client_id="c")
    with pytest.raises(ValueError, match="'GSSAPI' is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        SaslSettings(mechanism="GSSAPI", username="u", password="p")
