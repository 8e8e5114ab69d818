"""Connections behind a load balancer that forgets idle ones without a word: no packet is answered, and none resets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from e2e.local_cluster.daemons import free_ports
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import producer_config
from fleet_consumer.net import ConnectionSettings
from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

FORGOTTEN_AFTER_S = 5.0
IDLE_MS = 1_000
ANSWERED_S = 20.0
"""Far below the 30 seconds of a request that nobody answers."""


class _Flow:
    """Both directions of one connection; once forgotten it swallows what comes."""

    def __init__(self) -> None:
        self._passed_at = time.monotonic()
        self._forgotten = False

    def passes(self) -> bool:
        now = time.monotonic()
        self._forgotten = self._forgotten or now - self._passed_at > FORGOTTEN_AFTER_S
        self._passed_at = now
        return not self._forgotten


class _Balancer:
    """Passes connections on to `target`."""

    def __init__(self, port: int) -> None:
        self.target = ""
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            host, _, port = self.target.rpartition(":")
            try:
                broker, flow = socket.create_connection((host, int(port))), _Flow()
            except OSError:
                client.shutdown(socket.SHUT_RDWR)
                continue
            self._open.append(broker)
            for here, there in ((client, broker), (broker, client)):
                pump = threading.Thread(target=self._pump, args=(here, there, flow), daemon=True)
                self._threads.append(pump)
                pump.start()

    def _pump(self, here: socket.socket, there: socket.socket, flow: _Flow) -> None:
        with suppress(OSError):
            while data := here.recv(65536):
                if flow.passes():
                    there.sendall(data)
            there.shutdown(socket.SHUT_RDWR)


@contextmanager
def balancer() -> Iterator[tuple[_Balancer, str]]:
    (port,) = free_ports(1, "127.0.0.1")
    made = _Balancer(port)
    try:
        yield made, f"127.0.0.1:{port}"
    finally:
        made.close()


def write_and_wait(producer: RecordProducer, value: str) -> float:
    """Write a record; returns the seconds until it was acknowledged."""
    began, handle = time.monotonic(), producer.send("failed", key=None, value=value)

    def acknowledged() -> bool:
        producer.flush(0.1)
        return handle.done

    eventually(acknowledged, timeout_s=120, what="the acknowledgement")
    assert handle.error is None
    return time.monotonic() - began


def test_write_after_a_pause_is_acknowledged_at_once_where_idle_connections_are_forgotten() -> None:
    with balancer() as (between, address), KafkaBroker(proxied_as=address) as broker:
        between.target = broker.proxied_listener
        Kafka(broker.bootstrap).create("failed", partitions=1)
        connection = ConnectionSettings(
            bootstrap_servers=(address,), client_id="w", connections_max_idle_ms=IDLE_MS, request_timeout_ms=30_000
        )
        producer = RecordProducer(producer_config(connection, {}))
        write_and_wait(producer, "first")
        written = time.monotonic()
        eventually(
            lambda: producer.flush(0.1) == 0 and time.monotonic() - written > FORGOTTEN_AFTER_S + 1.0,
            timeout_s=120,
            what="the balancer to have forgotten the connections",
        )
        assert write_and_wait(producer, "second") < ANSWERED_S
