"""The operator's polls of a real broker: its own code with a clock set by the test, and the true values next to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Part
from confluent_kafka.admin import AdminClient

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract import naming
from fleet_consumer.net import ConnectionSettings, NetError, NetworkClient
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.observe.observer import failure
from fleet_operator.observe.poll import Poll
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.observe.subscriptions import CLIENT_ID, GroupSubscription, retry_subscription
from fleet_operator.planning.observation import ClusterObservation, RetryObservation
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

PATIENCE_S = 240.0


class WallClock(SystemClock):
    """The machine's clock. A test may set its wall time (epoch milliseconds) and advance its monotonic one."""

    now_ms: int | None = None
    ahead_s: float = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall(self) -> float:
        return super().wall() if self.now_ms is None else self.now_ms / 1000


@dataclass
class Watcher:
    """The flow of one group, observed as the operator does, with its memory between polls."""

    client: NetworkClient
    subscription: GroupSubscription
    clock: WallClock = field(default_factory=WallClock)
    cluster: ClusterMemory = field(default_factory=ClusterMemory)
    part: PartMemory = field(default_factory=PartMemory)
    last: ClusterObservation | None = None

    @property
    def admin(self) -> KafkaAdmin:
        """Changes on the cluster that is polled."""
        return KafkaAdmin(self.client)

    def poll(self, now_ms: int | None = None) -> ClusterObservation:
        """Poll at the given time; by default now."""
        self.clock.now_ms = now_ms
        poll = Poll(
            client=self.client,
            clock=self.clock,
            subscriptions={self.subscription.group_id: self.subscription},
            last=self.last,
            cluster=self.cluster,
            part=self.part,
            stopping=lambda: False,
        )
        try:
            self.last = poll.run()
        except NetError as error:
            self.last = failure(error, self.last, self.clock.wall())
        return self.last

    def flow(self, now_ms: int | None = None) -> RetryObservation:
        """The retry flow of one poll."""
        found = self.poll(now_ms).groups[self.subscription.group_id].retry
        assert found is not None
        return found

    def await_topics(self, names: Collection[str]) -> None:
        """Wait until all partitions of these topics answer, which takes a moment after their creation."""

        def answering() -> bool:
            seen = self.flow()
            return seen.counted and all(seen.topics[name].partitions and seen.topics[name].configs for name in names)

        eventually(answering, timeout_s=PATIENCE_S, what="the new topics to answer")

    def known(self, now_ms: int | None = None) -> RetryObservation:
        """The flow once all partitions answer: right after the creation of a topic some may have no leader yet."""

        def counted() -> RetryObservation | None:
            found = self.flow(now_ms)
            return found if found.counted and found.error is None else None

        found = eventually(counted, timeout_s=PATIENCE_S, what="all partitions of the flow to answer")
        assert found is not None
        return found


@contextmanager
def watching(bootstrap: str, group_id: str, source: str, delays: Sequence[str]) -> Iterator[Watcher]:
    """Poll a group's retry flow."""
    subscription = GroupSubscription(
        group_id=group_id,
        topics=(source,),
        failed_topic=naming.failed_topic(group_id),
        retry=retry_subscription(group_id, delays),
    )
    with polling(bootstrap, subscription) as watcher:
        yield watcher


@contextmanager
def polling(bootstrap: str, subscription: GroupSubscription) -> Iterator[Watcher]:
    """Poll a group."""
    client = NetworkClient(ConnectionSettings(bootstrap_servers=tuple(bootstrap.split(",")), client_id=CLIENT_ID))
    try:
        yield Watcher(client, subscription)
    finally:
        client.close()


def write(bootstrap: str, topic: str, partition: int, count: int) -> None:
    """Write records one after the other, so that many have different times."""
    producer = SureProducer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, value=str(number).encode(), partition=partition)
        assert producer.flush(PATIENCE_S) == 0


def write_together(bootstrap: str, topic: str, partition: int, count: int) -> None:
    """Write records in one batch: the broker gives them all the same append time."""
    producer = SureProducer({"bootstrap.servers": bootstrap, "linger.ms": 500, "batch.num.messages": count})
    for number in range(count):
        producer.produce(topic, value=str(number).encode(), partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def append_times(bootstrap: str, topic: str, partitions: int) -> dict[int, dict[int, int]]:
    """The content of each partition: offset to append time in milliseconds, read completely with another client."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "truth", "enable.auto.commit": False})
    try:
        bounds = {p: consumer.get_watermark_offsets(Part(topic, p), timeout=PATIENCE_S) for p in range(partitions)}
        found: dict[int, dict[int, int]] = {p: {} for p in range(partitions)}
        consumer.assign([Part(topic, p, low) for p, (low, _) in bounds.items()])
        wanted = sum(high - low for low, high in bounds.values())

        def read() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                found[partition][offset] = message.timestamp()[1]
            return sum(map(len, found.values())) >= wanted

        eventually(read, timeout_s=PATIENCE_S, what=f"{wanted} records of {topic}", poll_s=0.0)
        return found
    finally:
        consumer.close()


def commit(bootstrap: str, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit positions for a group without members."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id, "enable.auto.commit": False})

    def accepted() -> bool:
        try:
            consumer.commit(offsets=[Part(t, p, offset) for (t, p), offset in offsets.items()], asynchronous=False)
        except KafkaException as error:  # its coordinator may be moving to another broker
            raise AssertionError(error) from error
        return True

    try:
        eventually(accepted, timeout_s=PATIENCE_S, what=f"a commit of {group_id}")
    finally:
        consumer.close()


def cut(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Delete the records below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([Part(topic, partition, before)]).values():
        done.result()
