"""Group members for tests: consumers that poll on their own threads and note their records."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from fleet_consumer import Consumer, ConsumerSettings, TopicPartition
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.net import ConnectionSettings
from tests.support.kafka_topics import add_partitions, make_topics
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

_names = itertools.count()


def unique(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}-{os.getpid()}-{next(_names)}"


def create_topic(
    bootstrap: str, partitions: int, name: str | None = None, config: Mapping[str, str] | None = None
) -> str:
    """Create a topic whose partitions have leaders; return its name."""
    topic = name or unique("topic")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    make_topics(admin, [NewTopic(topic, partitions, 1, config=dict(config or {}))])
    return topic


def grow_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Add partitions up to this number."""
    add_partitions(AdminClient({"bootstrap.servers": bootstrap}), topic, partitions)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Remove a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it must live until its future is done
    admin.delete_topics([topic])[topic].result()


def produce(bootstrap: str, topic: str, partitions: int, each: int, first: int = 0) -> set[tuple[int, int]]:
    """Write records to every partition; return their places, as (partition, offset) from offset `first`."""
    producer = SureProducer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for partition in range(partitions):
        for number in range(first, first + each):
            producer.produce(topic, key=str(partition).encode(), value=str(number).encode(), partition=partition)
    assert producer.flush(60) == 0
    return {(partition, number) for partition in range(partitions) for number in range(first, first + each)}


def settings(bootstrap: str, group: str | None, **changes: Any) -> ConsumerSettings:
    """Settings with short times for quick tests; the session is long, so that a busy machine costs no membership."""
    connection = ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="test", request_timeout_ms=5_000)
    short = ConsumerSettings(
        connection=connection,
        group_id=group,
        session_timeout_ms=30_000,
        heartbeat_interval_ms=300,
        max_poll_interval_ms=60_000,
        metadata_max_age_ms=1_000,
    )
    return replace(short, **changes)


@dataclass(frozen=True, slots=True)
class Handed:
    """One run of records that a poll returned, and its generation."""

    generation: int
    partition: int
    first: int
    last: int


class Member:
    """A consumer on a thread: it polls, notes, and commits its records after each poll and before a revocation."""

    def __init__(
        self,
        settings: ConsumerSettings,
        topics: Sequence[str] | re.Pattern[str],
        *,
        commits: bool = True,
        while_revoking: Callable[[], object] = lambda: None,
    ) -> None:
        self.consumer = Consumer(settings)
        self.handed: list[Handed] = []
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.holds: frozenset[TopicPartition] = frozenset()
        """The partitions of this member by its callbacks."""
        self.error: BaseException | None = None
        self.positions: dict[TopicPartition, int | None] = {}
        self._commits = commits
        self._while_revoking = while_revoking
        self._topics = topics
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}
        self._stop = threading.Event()
        self._polling = threading.Event()
        self._polling.set()
        self._leave = "default"
        self._thread = threading.Thread(target=self._run, name=f"member-{settings.group_id}", daemon=True)
        self._thread.start()

    # Questions of tests.

    @property
    def membership(self) -> Membership:
        return self.consumer.membership()

    @property
    def owned(self) -> frozenset[tuple[str, int]]:
        """The partitions of this member by the group, once it is Stable."""
        picture = self.membership
        if picture.state != "Stable":
            return frozenset()
        return frozenset((topic, number) for topic, numbers in picture.assignment.items() for number in numbers)

    @property
    def seen(self) -> list[tuple[int, int]]:
        """Every (partition, offset) that polls returned, in order, duplicates included."""
        return [(run.partition, offset) for run in list(self.handed) for offset in range(run.first, run.last + 1)]

    def hang(self) -> None:
        """Stop polling, as a handler that never returns would."""
        self._polling.clear()

    def wake(self) -> None:
        """Resume polling."""
        self._polling.set()

    def stop(self, leave: str = "default") -> None:
        """Close the consumer and wait for the end."""
        self._leave = leave
        self._stop.set()
        self._polling.set()
        self.consumer.wakeup()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the member did not end"

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # The thread.

    def _run(self) -> None:
        try:
            self.consumer.subscribe(
                self._topics,
                on_assigned=lambda parts: self._record("assigned", parts),
                on_revoked=self._revoked,
                on_lost=lambda parts: self._record("lost", parts),
            )
            while not self._stop.is_set():
                self._polling.wait()
                self._poll()
        except BaseException as error:
            self.error = error
        finally:
            self.consumer.close(10, self._leave)

    def _poll(self) -> None:
        records = self.consumer.poll(0.5)
        generation = self.membership.generation
        for run in records.runs:
            first, last = run.records[0].offset, run.records[-1].offset
            self.handed.append(Handed(generation, run.topic_partition.partition, first, last))
            self._done[run.topic_partition] = OffsetAndMetadata(run.next_offset, run.records[-1].leader_epoch)
        self.positions = {part: self.consumer.position(part) for part in self.consumer.assignment()}
        if records and self._commits:
            self.consumer.commit_async(self._done)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit positions, also of partitions without records yet.

        Under `latest` the next owner would skip records that come meanwhile.
        """
        self._while_revoking()
        self._record("revoked", partitions)
        positions = {part: self.consumer.position(part) for part in partitions}
        known = {part: OffsetAndMetadata(offset) for part, offset in positions.items() if offset is not None}
        if self._commits:
            self.consumer.commit({**known, **self._done}, 5)
        self._done = {}

    def _record(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        if what != "revoked":
            self._done = {}
        self.calls.append((what, tuple(partitions)))
        self.holds = self.holds.union(partitions) if what == "assigned" else self.holds.difference(partitions)


def await_shares(members: Iterable[Member], topic: str, partitions: int, timeout_s: float = 240) -> None:
    """Wait until these members are Stable in one generation, own every partition once, and their callbacks agree.

    The membership is ahead of the callbacks, which wait for the next poll.
    """
    group = list(members)
    wanted = sorted((topic, number) for number in range(partitions))

    def shared() -> bool:
        owned = sorted(part for member in group for part in member.owned)
        agreed = all(member.owned == member.holds for member in group)
        return agreed and owned == wanted and len({member.membership.generation for member in group}) == 1

    def seen() -> str:
        return str(
            [(member.membership.state, sorted(member.owned), sorted(member.holds), member.error) for member in group]
        )

    eventually(lambda: shared() or _raise(seen), timeout_s=timeout_s, what=f"{len(group)} members share {topic}")


def _raise(seen: Callable[[], str]) -> bool:
    raise AssertionError(seen())


def await_records(members: Sequence[Member], wanted: set[tuple[int, int]], timeout_s: float = 240) -> None:
    """Wait until these members together have received all of `wanted`."""
    eventually(
        lambda: (
            wanted <= {part for member in members for part in member.seen}
            or _raise(
                lambda: f"{len(wanted - {part for member in members for part in member.seen})} records are missing"
            )
        ),
        timeout_s=timeout_s,
        what="all records are handed out",
    )


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """The group's committed offsets, read with librdkafka."""
    from confluent_kafka import Consumer as Reader
    from confluent_kafka import TopicPartition as Part

    reader = Reader({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        parts = reader.committed([Part(topic, number) for number in range(partitions)], timeout=10)
        return {part.partition: part.offset for part in parts}
    finally:
        reader.close()


def iterate(consumer: Consumer, count: int, timeout_s: float = 240) -> Iterator[Any]:
    """Poll in this thread until `count` records have come."""
    got = 0

    def more() -> list[Any]:
        return list(consumer.poll(0.2))

    while got < count:
        batch = eventually(more, timeout_s=timeout_s, what=f"{count - got} more records")
        got += len(batch)
        yield from batch
