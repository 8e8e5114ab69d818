"""Bounds on what the answers of a broker cost the client: connections, threads, and the brokers that it accepts."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import pytest

from fleet_consumer.net import BrokerAddress, ConnectFailed, MalformedResponse, NetworkClient, RequestTimedOut
from fleet_consumer.net import client as net_client
from fleet_consumer.net.addresses import LOOKUPS_MAX
from fleet_consumer.net.client import BROKERS_MAX
from fleet_consumer.wire.groups import ListGroupsRequest
from fleet_consumer.wire.topics import MetadataRequest, MetadataResponse, MetadataResponseBroker
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected, finish
from tests.unit.net.scripted_broker import SILENT, ScriptedBroker


class Names:
    """Names that no server ever answers for, until they are released; literal addresses are looked up as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released, self.asked = threading.Event(), list[str]()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, *args: Any, **options: Any) -> Any:
        if not host.endswith(".example"):
            return self._real(host, *args, **options)
        self.asked.append(host)
        self.released.wait(PATIENCE_S)
        raise socket.gaierror("released")


def open_connections(client: NetworkClient) -> int:
    return len(client._selector.get_map()) - 1


def test_list_of_more_brokers_than_a_cluster_has_is_not_believed() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        client.metadata(timeout_s=PATIENCE_S)
        many = tuple(MetadataResponseBroker(node_id=node, host="b", port=1) for node in range(BROKERS_MAX + 1))
        broker.on(MetadataRequest, lambda _: MetadataResponse(brokers=many, topics=()))
        with pytest.raises(MalformedResponse, match=f"broker {broker.address} lists 1001 brokers"):
            client.metadata(timeout_s=PATIENCE_S)
        assert dict(client.brokers) == {0: broker.address}


def test_unused_connections_give_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_client, "CONNECTIONS_MAX", 3)
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(ScriptedBroker()) for _ in range(8)]
        client = stack.enter_context(connected(brokers[0].address))
        for broker in brokers:
            broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        for _ in range(3):
            calls = [client.send(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) for broker in brokers]
            while not all(call.done for call in calls):
                client.poll(PATIENCE_S)
                assert open_connections(client) <= 3
            assert [call.response for call in calls] == [NO_GROUPS] * len(brokers)


def test_silent_brokers_hold_the_places_of_others_no_longer_than_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_client, "CONNECTIONS_MAX", 2)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(ScriptedBroker()) for _ in range(2)]
        living = stack.enter_context(ScriptedBroker())
        client = stack.enter_context(connected(living.address))
        living.on(ListGroupsRequest, lambda _: NO_GROUPS)
        for broker in silent:
            broker.on(ListGroupsRequest, lambda _: SILENT)
        waiting = [client.send(broker.address, LIST_GROUPS, timeout_s=0.5) for broker in silent]
        answered = client.send(living.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        finish(client, *waiting, answered)
        assert [type(call.error) for call in waiting] == [RequestTimedOut] * 2
        assert answered.response == NO_GROUPS


def test_names_are_looked_up_by_a_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    with ScriptedBroker() as broker, connected(broker.address, connect_timeout_ms=300) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        for number in range(LOOKUPS_MAX * 3):
            client.send(BrokerAddress(f"b{number}.example", 1), LIST_GROUPS, timeout_s=1.0)
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS, "an address needs no thread"
        hopeless = client.send(BrokerAddress("last.example", 1), LIST_GROUPS, timeout_s=1.0)
        finish(client, hopeless)
        assert len(names.asked) == LOOKUPS_MAX
        names.released.set()


def test_name_has_one_lookup_however_often_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    with connected(BrokerAddress("slow.example", 1), connect_timeout_ms=50) as client:
        for _ in range(5):
            with pytest.raises(ConnectFailed, match="looking up the name"):
                client.call(BrokerAddress("slow.example", 1), LIST_GROUPS, timeout_s=PATIENCE_S)
        assert names.asked == ["slow.example"]
        names.released.set()


def test_name_cannot_be_looked_up_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with connected(BrokerAddress("b.example", 1)) as client, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(ConnectFailed, match="can't start new thread"):
            client.call(BrokerAddress("b.example", 1), LIST_GROUPS, timeout_s=PATIENCE_S)
