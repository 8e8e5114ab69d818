"""Requests and answers on one connection: versions, order, time-outs, throttling, lanes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fleet_consumer.net import (
    BrokerAddress,
    ConnectFailed,
    ConnectionSettings,
    Disconnected,
    NetworkClient,
    RequestTimedOut,
    UnsupportedByBroker,
)
from fleet_consumer.wire.connection import ApiVersionsRequest
from fleet_consumer.wire.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tests.support.clock import StillClock
from tests.support.waiting import eventually
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected, finish
from tests.unit.net.scripted_broker import HANG_UP, SILENT, Answer, Asked, ScriptedBroker

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def test_highest_version_that_both_sides_speak_is_used() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        broker.versions[ListGroupsRequest.API_KEY] = (0, 2)
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS
        assert [(asked.version, asked.client_id) for asked in broker.asked] == [(2, "test")]


def test_older_broker_is_asked_for_its_versions_again_in_a_version_it_knows() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        broker.versions[18] = (0, 2)
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert [asked.version for asked in broker.negotiated] == [4, 2]


def test_api_that_the_broker_lacks_is_refused_without_asking_it() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        del broker.versions[ListGroupsRequest.API_KEY]
        with pytest.raises(UnsupportedByBroker, match="does not support ListGroups"):
            client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert broker.asked == []


def test_broker_without_a_common_version_is_refused_with_both_ranges() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.versions[ListGroupsRequest.API_KEY] = (6, 7)
        with pytest.raises(UnsupportedByBroker, match=r"versions 6 to 7, this client 0 to 5"):
            client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)


def test_request_that_an_old_broker_cannot_take_is_refused_and_the_connection_lives() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.versions[FindCoordinatorRequest.API_KEY] = (0, 3)
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        with pytest.raises(UnsupportedByBroker, match="coordinator_keys exists only in versions from 4"):
            client.find_coordinators(["g"], timeout_s=PATIENCE_S)
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert broker.connections == 1


def test_requests_are_sent_without_waiting_for_earlier_answers() -> None:
    """And every answer finds its own call."""

    def answer(asked: Asked) -> Answer:
        if asked.request.generation_id == 0:
            eventually(lambda: broker.has_unread(asked), timeout_s=PATIENCE_S, what="a second request to come")
        return HeartbeatResponse(error_code=asked.request.generation_id)

    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(HeartbeatRequest, answer)
        calls = [
            client.send(broker.address, HeartbeatRequest(group_id="g", generation_id=number, member_id="m"))
            for number in range(300)
        ]
        finish(client, *calls)
        assert [call.response.error_code for call in calls] == list(range(300))
        assert broker.connections == 1


def test_connections_to_one_broker_do_not_wait_for_each_other() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: SILENT)
        broker.on(HeartbeatRequest, lambda _: HeartbeatResponse(error_code=0))
        slow = client.send(broker.address, LIST_GROUPS, lane="join")
        quick = client.send(broker.address, HEARTBEAT, lane="heartbeat", timeout_s=PATIENCE_S)
        finish(client, quick)
        assert quick.response.error_code == 0

        def read_both() -> bool:
            client.poll(0.01)  # its connection may still be negotiating
            return len(broker.asked) == 2

        eventually(read_both, timeout_s=PATIENCE_S, what="the broker to read both requests")
        assert not slow.done
        assert len({asked.connection for asked in broker.asked}) == 2


def test_silent_broker_times_the_call_out_and_fails_queued_calls() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: SILENT)
        broker.on(HeartbeatRequest, lambda _: HeartbeatResponse(error_code=0))
        client.call(broker.address, HEARTBEAT, timeout_s=PATIENCE_S)
        begun = time.monotonic()
        first = client.send(broker.address, LIST_GROUPS, timeout_s=0.2)
        second = client.send(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        finish(client, first, second)
        assert isinstance(first.error, RequestTimedOut)
        assert "ListGroupsRequest" in str(first.error)
        assert "0.2 s" in str(first.error)
        assert isinstance(second.error, Disconnected)
        assert 0.2 <= time.monotonic() - begun < PATIENCE_S
        # The next call gets a fresh connection, on which no late answer can be mistaken for its own.
        assert client.call(broker.address, HEARTBEAT, timeout_s=PATIENCE_S).error_code == 0
        assert broker.connections == 2


def test_broker_that_never_negotiates_times_the_connection_out() -> None:
    with ScriptedBroker() as broker, connected(broker.address, connect_timeout_ms=200) as client:
        broker.on(ApiVersionsRequest, lambda _: SILENT)
        with pytest.raises(ConnectFailed, match=r"negotiating versions and login after 0\.2 s"):
            client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)


def test_lost_connection_fails_sent_calls_and_keeps_unsent_ones() -> None:
    """A request that was sent may have been carried out; one that was not can go out on the next connection."""
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda asked: NO_GROUPS if asked.connection > 1 else HANG_UP)
        sent = client.send(broker.address, LIST_GROUPS)
        finish(client, sent)
        assert isinstance(sent.error, Disconnected)
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS


def test_throttled_client_sends_nothing_until_the_time_is_over() -> None:
    """KIP-219: the broker answers at once and leaves the waiting to the client."""
    answers = iter([ListGroupsResponse(throttle_time_ms=300, error_code=0, groups=()), NO_GROUPS])
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: next(answers))
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        with pytest.raises(RequestTimedOut, match="throttled by the broker"):
            client.call(broker.address, LIST_GROUPS, timeout_s=0.05)
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        first, second = (asked.at for asked in broker.asked)
        assert second - first >= 0.3
        assert broker.connections == 1


def test_wakeup_ends_a_poll_from_another_thread() -> None:
    with connected(BrokerAddress("127.0.0.1", 1)) as client:
        waker = threading.Timer(0.1, client.wakeup)
        waker.start()
        begun = time.monotonic()
        client.poll(PATIENCE_S)
        waker.join()
        assert 0.05 < time.monotonic() - begun < PATIENCE_S / 2


def test_wakeup_before_a_poll_or_during_a_call_is_not_lost_and_not_piled_up() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        for _ in range(100_000):  # more than the pipe can hold
            client.wakeup()
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        begun = time.monotonic()
        client.poll(PATIENCE_S)
        client.poll(0.2)
        assert 0.2 <= time.monotonic() - begun < PATIENCE_S


def test_poll_returns_early_when_a_call_ends() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        call = client.send(broker.address, LIST_GROUPS)
        begun = time.monotonic()
        finish(client, call)
        assert time.monotonic() - begun < PATIENCE_S


def test_closing_ends_calls_and_later_ones_too() -> None:
    with ScriptedBroker() as broker:
        broker.on(ListGroupsRequest, lambda _: SILENT)
        with connected(broker.address) as client:
            sent = client.send(broker.address, LIST_GROUPS)
            _poll_until_asked(client, broker)
            waiting = client.send(BrokerAddress("127.0.0.1", 1), LIST_GROUPS)
            client.close()
            client.close()
            client.wakeup()
            late = client.send(broker.address, LIST_GROUPS)
            for call in (sent, waiting, late):
                assert isinstance(call.error, Disconnected)
                assert call.error.reason == "ClientClosed"
            client.poll(PATIENCE_S)


def test_idle_connection_is_renewed_before_a_broker_would_end_it() -> None:
    class Jump:
        ahead_s = 0.0

        def monotonic(self) -> float:
            return time.monotonic() + self.ahead_s

        def wall(self) -> float:
            return time.time()

    clock = Jump()
    with ScriptedBroker() as broker, connected(broker.address, clock=clock) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        clock.ahead_s = 150.0
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert broker.connections == 1
        clock.ahead_s = 400.0
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert broker.connections == 2


def _poll_until_asked(client: NetworkClient, broker: ScriptedBroker) -> None:
    def asked() -> bool:
        client.poll(0.01)
        return bool(broker.asked)

    eventually(asked, timeout_s=PATIENCE_S, what="the request to arrive")


def test_connection_that_idles_is_closed_and_the_next_request_opens_another() -> None:
    clock = StillClock()
    with (
        ScriptedBroker() as broker,
        connected(broker.address, clock=clock, connections_max_idle_ms=30_000) as client,
    ):
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        clock.now += 29.0
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert broker.connections == 1
        clock.now += 30.0
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert broker.connections == 2


def test_idle_limit_that_cannot_work_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="connections_max_idle_ms is 0"):
        ConnectionSettings(bootstrap_servers=("localhost:1",), client_id="c", connections_max_idle_ms=0)


def test_one_string_of_bootstrap_servers_is_refused_as_what_it_is() -> None:
    """It would be read letter by letter."""
    servers: Any = "localhost:9092"
    with pytest.raises(ValueError, match=r"bootstrap_servers is a string, 'localhost:9092'; give a tuple"):
        ConnectionSettings(bootstrap_servers=servers, client_id="c")
