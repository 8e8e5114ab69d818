"""A member of the new protocol (KIP-848) joins a classic group of ours and leaves it again, as in a migration."""

from __future__ import annotations

import threading
from collections import Counter

import confluent_kafka
import pytest

from tests.broker.members import Member, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

PARTITIONS, EACH = 6, 40
ASSIGNORS = ("range", "cooperative-sticky")


class NewMember(threading.Thread):
    """librdkafka's consumer of the protocol `consumer`; it commits each record before it takes the next."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[int, int]] = []
        self.owned: frozenset[tuple[str, int]] = frozenset()
        self.end = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])
        self.start()

    def run(self) -> None:
        while not self.end.is_set():
            message = self._consumer.poll(0.2)
            self.owned = frozenset((each.topic, each.partition) for each in self._consumer.assignment())
            if message is not None and message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.seen.append((partition, offset))
                self._consumer.commit(message=message, asynchronous=False)
        self._consumer.close()


def test_member_of_the_new_protocol_joins_and_leaves_and_nothing_is_lost_or_handed_out_twice(
    broker: KafkaBroker,
) -> None:
    topic, group = create_topic(broker.bootstrap, PARTITIONS), unique("mixed")
    ours = settings(broker.bootstrap, group, assignors=ASSIGNORS)
    every = frozenset((topic, number) for number in range(PARTITIONS))
    written = 0

    def write_and_await(*members: Member | NewMember) -> None:
        """All partitions are shared among these, and they get what is written then, each record once."""
        nonlocal written
        eventually(
            lambda: (
                all(each.owned for each in members) and frozenset[object]().union(*(m.owned for m in members)) == every
            ),
            timeout_s=240,
            what="the members to share the partitions",
        )
        produce(broker.bootstrap, topic, PARTITIONS, EACH)
        written += EACH
        wanted = {(number, offset) for number in range(PARTITIONS) for offset in range(written)}
        eventually(lambda: {place for each in everybody for place in each.seen} == wanted, timeout_s=240, what="all")

    everybody: list[Member | NewMember] = []
    with Member(ours, [topic]) as first, Member(ours, [topic]) as second:
        everybody += [first, second]
        write_and_await(first, second)
        new = NewMember(broker.bootstrap, group, topic)
        everybody.append(new)
        write_and_await(first, second, new)
        first.stop()
        write_and_await(second, new)
        new.end.set()
        new.join(60)
        write_and_await(second)
        assert (first.error, second.error) == (None, None)
    assert new.seen, "the group was mixed"
    twice = {place: count for place, count in Counter(p for each in everybody for p in each.seen).items() if count > 1}
    assert twice == {}
