"""No known broker exists any more: the cluster is found again through the bootstrap list."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from fleet_consumer import Consumer
from fleet_consumer.net import ConnectionSettings, NetworkClient, parse_address
from tests.broker.members import create_topic, produce, settings, unique
from tests.support.kafka import ADDRESS, KafkaBroker
from tests.support.waiting import eventually

PATIENCE_S = 240.0


class Door:
    """A fixed address that leads to the broker's current one, as a Kubernetes Service does; a context manager."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._listener = socket.create_server((ADDRESS, 0))
        self.bootstrap = f"{ADDRESS}:{self._listener.getsockname()[1]}"
        self._end, self._ending = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="door")

    def __enter__(self) -> Door:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        self._thread.join()
        self._ending.close()
        self._listener.close()

    def _serve(self) -> None:
        """All connections in one thread: there are few, with little traffic."""
        peers: dict[socket.socket, socket.socket] = {}
        while True:
            ready, _, _ = select.select([self._listener, self._ending, *peers], [], [])
            if self._ending in ready:
                break
            for source in ready:
                if source is self._listener:
                    self._let_in(peers)
                elif source in peers and not _pass_on(source, peers[source]):
                    _close(peers, source)
        for source in list(peers):
            _close(peers, source)

    def _let_in(self, peers: dict[socket.socket, socket.socket]) -> None:
        inside, _ = self._listener.accept()
        try:
            outside = socket.create_connection(parse_address(self._broker.bootstrap))
        except OSError:
            inside.close()
        else:
            peers[inside], peers[outside] = outside, inside


def _pass_on(source: socket.socket, target: socket.socket) -> bool:
    try:
        data = source.recv(65536)
        target.sendall(data)
    except OSError:
        return False
    return bool(data)


def _close(peers: dict[socket.socket, socket.socket], end: socket.socket) -> None:
    other = peers.pop(end, None)
    if other is not None:
        peers.pop(other, None)
        other.close()
    end.close()


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    """Its own broker, which moves."""
    with KafkaBroker(properties={"group.min.session.timeout.ms": "1000"}) as running:
        yield running


@pytest.fixture
def door(broker: KafkaBroker) -> Iterator[Door]:
    with Door(broker) as opened:
        yield opened


def test_client_and_member_continue_after_every_broker_moved(broker: KafkaBroker, door: Door) -> None:
    """The advertised address is dead for good; both planes must use the bootstrap address again. Nothing is lost."""
    topic = create_topic(broker.bootstrap, 2)
    first = produce(broker.bootstrap, topic, 2, 20)
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(door.bootstrap,), client_id="moved"))
    seen: list[tuple[int, int]] = []
    try:
        client.metadata(timeout_s=PATIENCE_S)
        assert str(client.brokers[1]) == broker.bootstrap
        with Consumer(settings(door.bootstrap, unique("group"), session_timeout_ms=30_000)) as consumer:
            consumer.subscribe([topic])

            def saw(count: int) -> bool:
                seen.extend((record.partition, record.offset) for record in consumer.poll(0.2))
                return len(seen) >= count

            eventually(lambda: saw(len(first)), timeout_s=PATIENCE_S, what="the records before", poll_s=0.001)
            consumer.commit(timeout_s=PATIENCE_S)
            before = broker.bootstrap
            broker.stop()
            broker.move()
            assert broker.bootstrap != before
            broker.start()
            second = produce(broker.bootstrap, topic, 2, 20, first=20)
            expected = sorted(first | second)
            eventually(lambda: saw(len(expected)), timeout_s=PATIENCE_S, what="the records after", poll_s=0.001)
            assert sorted(seen) == expected
            consumer.commit(timeout_s=PATIENCE_S)
        client.metadata(timeout_s=PATIENCE_S)
        assert str(client.brokers[1]) == broker.bootstrap
    finally:
        client.close()
