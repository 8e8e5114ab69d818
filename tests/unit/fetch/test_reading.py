"""Reading from librdkafka, on its own cluster within the process: order, handover, bounds, errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import confluent_kafka
import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.fetch import thread as fetch_module
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer, ReadAhead
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.librdkafka.settings import consumer_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import Records, TopicPartition
from tests.support.waiting import eventually

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Reader:
    """A fetch thread and its user, who waits as `Consumer.poll` does."""

    def __init__(self, bootstrap: str) -> None:
        connection = ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="test")
        self.signal = threading.Event()
        self.fetch = FetchThread(
            # What is assigned again waits until the fetch that is on its way has come back.
            {**consumer_config(connection, "g", "read_uncommitted", {}), "fetch.wait.max.ms": 50},
            name="fetch-test",
            on_released=self.signal.set,
            clock=SystemClock(),
        )
        self.out_of_range: list[str] = []
        self.fetch.start()

    def begin(self, *partitions: TopicPartition, position: int = 0) -> list[PartitionBuffer]:
        buffers = [PartitionBuffer(part, position) for part in partitions]
        self.fetch.assign(buffers)
        return buffers

    def take(self, limit: int = 500) -> Records:
        self.signal.clear()
        records = self.fetch.take_records(limit, self._record)
        if not records and limit:
            self.fetch.wait(0.5, self.signal)
        return records

    def _record(self, buffer: PartitionBuffer, what: OutOfRange) -> None:
        self.out_of_range.append(f"{buffer.topic_partition.partition}: {what.detail}")


class Cluster:
    """librdkafka's mock cluster with the topic `t`."""

    def __init__(self) -> None:
        self.producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "linger.ms": 1, "log_level": 0})
        brokers = self.producer.list_topics(timeout=10).brokers
        self.bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
        self.producer.list_topics("t", timeout=10)  # makes it

    def write(self, partition: int, count: int, size: int = 10) -> None:
        for number in range(count):
            self.producer.produce("t", b"x" * size, str(number).encode(), partition=partition)
            if number % 1_000 == 0:
                self.producer.poll(0)
        assert self.producer.flush(30) == 0

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        reader = Reader(self.bootstrap)
        try:
            yield reader
        finally:
            assert reader.fetch.close(10)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_records_come_in_order_and_complete_for_any_take_limits(cluster: Cluster) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    cluster.write(0, 6_000)
    cluster.write(1, 6_000)
    seen: dict[int, list[int]] = {0: [], 1: []}
    with cluster.reader() as reader:
        reader.begin(ONE, OTHER)

        def all_read() -> bool:
            limit = chance.choice((0, 1, 7, 499, 500, 501, 2_000))
            records = reader.take(limit)
            assert len(records) <= limit
            for run in records.runs:
                for record in run.records:
                    assert (record.topic, record.partition) == run.topic_partition
                    assert record.key == str(record.offset).encode()
                    seen[record.partition].append(record.offset)
            return len(seen[0]) + len(seen[1]) >= 12_000

        eventually(all_read, timeout_s=60, poll_s=0, what="all records to be read")
    assert seen == {0: list(range(6_000)), 1: list(range(6_000))}


def test_while_records_stream_the_user_reads_them_itself(cluster: Cluster) -> None:
    """No hand-over between threads on the hot path: librdkafka has them, the user's thread takes them from there."""
    cluster.write(0, 20_000)
    put = ReadAhead.put
    by: dict[str, int] = {}

    def record(self: ReadAhead, buffer: PartitionBuffer, run: list[confluent_kafka.Message], size: int) -> None:
        name = threading.current_thread().name
        by[name] = by.get(name, 0) + len(run)
        put(self, buffer, run, size)

    with pytest.MonkeyPatch.context() as patch, cluster.reader() as reader:
        patch.setattr(ReadAhead, "put", record)
        reader.begin(ONE)
        total = 0

        def all_read() -> bool:
            nonlocal total
            total += len(reader.take())
            return total >= 20_000

        eventually(all_read, timeout_s=60, poll_s=0, what="all records to be read")
    assert by[threading.current_thread().name] > 19_000, by


def test_record_that_comes_ends_the_wait_for_it(cluster: Cluster) -> None:
    with cluster.reader() as reader:
        reader.begin(ONE)
        for expected in range(5):
            threading.Timer(0.1, cluster.write, (0, 1)).start()
            got = eventually(reader.take, timeout_s=20, poll_s=0, what="the record")
            assert [record.offset for record in got] == [expected]


def test_wait_for_records_ends_on_other_events(cluster: Cluster) -> None:
    with cluster.reader() as reader:
        reader.begin(ONE)
        assert not reader.take()
        changed = threading.Event()
        threading.Timer(0.2, changed.set).start()
        reader.fetch.wait(60.0, changed)
        assert changed.is_set()


def test_endless_wait_yields_to_the_fetch_thread(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock alone would go back to the user's thread each time."""
    monkeypatch.setattr(fetch_module, "SERVE_S", 0.05)
    polls = 0
    with cluster.reader() as reader:
        reader.begin(ONE)

        def told() -> None:
            nonlocal polls
            polls += 1
            reader.signal.set()

        reader.fetch._on_released = told
        eventually(lambda: (reader.take(), polls >= 10)[1], timeout_s=20, poll_s=0, what="the thread to have its polls")


def test_absent_user_bounds_prefetching(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serving librdkafka's callbacks may bring a record each time; that ends at a number of bytes."""
    monkeypatch.setattr(fetch_module, "READ_AHEAD_BYTES", 20_000)
    monkeypatch.setattr(fetch_module, "SERVE_S", 0.005)
    served, serve = 0, FetchThread._serve

    def count(self: FetchThread) -> None:
        nonlocal served
        served += 1
        serve(self)

    monkeypatch.setattr(FetchThread, "_serve", count)
    cluster.write(0, 100, size=1_000)
    with cluster.reader() as reader:
        reader.begin(ONE)
        ahead = reader.fetch.read_ahead
        eventually(lambda: ahead.waiting_bytes >= 20_000, timeout_s=20, what="the bound to be reached")
        before = served
        eventually(lambda: served - before >= 20, timeout_s=20, what="further rounds")
        assert ahead.waiting == 20
        assert [record.offset for record in reader.take()] == list(range(20))
        assert next(iter(eventually(reader.take, timeout_s=20, poll_s=0, what="the rest"))).offset == 20


def test_commands_are_carried_out_while_the_user_streams_and_nothing_old_follows_a_seek(cluster: Cluster) -> None:
    cluster.write(0, 5_000)
    with cluster.reader() as reader:
        (buffer,) = reader.begin(ONE)
        eventually(lambda: len(reader.take()), timeout_s=20, poll_s=0, what="the first records")
        for target in (4_000, 10, 2_500, 0):
            buffer.current = False
            buffer = PartitionBuffer(ONE, target)
            reader.fetch.seek(buffer)
            got = eventually(reader.take, timeout_s=20, poll_s=0, what=f"records after the seek to {target}")
            assert next(iter(got)).offset == target


def test_position_out_of_range_is_reported_to_the_user(cluster: Cluster) -> None:
    cluster.write(0, 10)
    with cluster.reader() as reader:
        reader.begin(ONE, position=1_000_000)
        eventually(lambda: (reader.take(), reader.out_of_range)[1], timeout_s=20, what="the event")
    assert reader.out_of_range[0].startswith("0: ")


class Stop(Exception):
    """An exception raised by a signal handler."""


class Interrupted:
    """librdkafka's consumer, whose third batch is lost because a signal handler raises at the end of that call."""

    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self._consumer = consumer
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, *arguments: Any) -> list[confluent_kafka.Message]:
        batch: list[confluent_kafka.Message] = self._consumer.consume(*arguments)
        self.calls += 1
        if self.calls == 3:
            raise Stop
        return batch


def test_interrupted_read_is_raised_and_reading_continues_at_the_users_position(
    cluster: Cluster,
) -> None:
    """librdkafka has handed its messages over and does not give them again on its own."""
    cluster.write(0, 5_000)
    with cluster.reader() as reader:
        (buffer,) = reader.begin(ONE)
        reader.fetch._consumer = cast(confluent_kafka.Consumer, Interrupted(reader.fetch._consumer))
        offsets: list[int] = []

        def interrupted() -> bool:
            try:
                offsets.extend(record.offset for record in reader.take())
            except Stop:
                return True
            return False

        eventually(interrupted, timeout_s=20, poll_s=0, what="the interruption")
        assert reader.fetch.failure is None
        buffer.current = False
        reader.fetch.start_over([PartitionBuffer(ONE, len(offsets))])

        def all_read() -> bool:
            offsets.extend(record.offset for record in reader.take())
            return len(offsets) >= 5_000

        eventually(all_read, timeout_s=20, poll_s=0, what="all records")
    assert offsets == list(range(5_000))


def test_lock_that_an_interrupted_thread_kept_is_given_back(cluster: Cluster) -> None:
    """A handler may raise between acquiring the lock and knowing it; the fetch thread would wait indefinitely."""
    cluster.write(0, 10)
    with cluster.reader() as reader:
        (buffer,) = reader.begin(ONE)
        eventually(reader.take, timeout_s=20, poll_s=0, what="records")
        assert reader.fetch._consumer_lock.acquire(timeout=20)
        buffer.current = False
        reader.fetch.start_over([PartitionBuffer(ONE, 5)])
        assert next(iter(eventually(reader.take, timeout_s=20, poll_s=0, what="the rest"))).offset == 5


def test_partition_is_sought_at_once_after_it_was_assigned_while_others_are_given_back(cluster: Cluster) -> None:
    """librdkafka refuses to seek what it has not begun to read; that must not end the reading of everything."""
    for part in (ONE, OTHER):
        cluster.write(part.partition, 20)
    with cluster.reader() as reader:
        for part in (ONE, OTHER) * 15:
            reader.begin(part, position=15)
            moved = PartitionBuffer(part, 3)
            reader.fetch.seek(moved)
            first = eventually(lambda: list(reader.take()), timeout_s=30, what="records")[0]
            assert (first.partition, first.offset, reader.fetch.failure) == (part.partition, 3, None)
            moved.current = False
            reader.fetch.unassign(frozenset({part}))
