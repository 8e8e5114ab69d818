"""Reads ranges of offsets of partitions. Progress is stored as committed offsets of a group.

No member joins the group, so its coordinator accepts commits without a generation (Kafka calls this a simple consumer).
This module does not interpret the content of records.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from fleet_consumer.group import errors
from fleet_consumer.group.commits import commit_parts
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.fetched import UNREADABLE, filled_records, read_again, stand
from fleet_consumer.librdkafka.settings import open_consumer
from fleet_consumer.record import Record, TopicPartition

T = TypeVar("T")

POLL_S: Final = 0.5
BATCH: Final = 500
FETCH_WAIT_MS: Final = 20
"""Milliseconds for which a broker may delay a fetch to wait for new records. The value is small, because the records of
a range already exist."""
FETCH_BYTES: Final = 256 * 1024
"""Maximum bytes of one partition per fetch, so that fetches alternate between partitions. A larger record is fetched
alone."""
ASK_TIMEOUT_S: Final = 30.0
"""Timeout of a query in seconds, including retries, for example while brokers elect a coordinator."""

GROUP_TIMEOUT_S: Final = 5.0
"""Timeout in seconds of one attempt to get the group's offsets. If the coordinator refuses access to the group, the
error of the attempt says only that no coordinator was found. librdkafka reports the reason in a message, so each failed
attempt is followed by a poll."""

AGAIN_S: Final = 0.5
UNREADABLE_TRIES: Final = 5
"""Number of attempts to read unreadable data, at least `POLL_S` apart. DataUnreadable is raised when every incomplete
partition has failed this number of times."""
MOVING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
    }
)
"""Transient errors, which occur while brokers restart, or before the offsets topic of a new cluster exists."""

DENIED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: errors.TopicAuthorizationFailed,
    KafkaError.GROUP_AUTHORIZATION_FAILED: errors.GroupAuthorizationFailed,
}

OF_TOPICS: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART})
"""Errors that are about a topic, even if the query was about the group's offsets."""


class Step(NamedTuple):
    """One batch. `records`: keyed by partition, in offset order. `done`: the partitions whose range has been read to
    its end."""

    records: Mapping[TopicPartition, list[Record]]
    done: frozenset[TopicPartition]


class Fetched(NamedTuple):
    """One batch. `messages`: keyed by partition, without errors and without empty lists. `done`: the partitions whose
    range has been read to its end."""

    messages: Mapping[TopicPartition, list[Message]]
    done: frozenset[TopicPartition]


class BoundedReader:
    """A reader with its own connection, for one thread. Close it, or use it as a context manager.

    `config` is librdkafka's configuration (`settings.consumer_config`); the offsets are committed in its group. Every
    method may raise TopicAuthorizationFailed, GroupAuthorizationFailed and DataPlaneFailed; the reader remains usable
    afterwards.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        stores_offsets: bool = True,
        patience_s: float = ASK_TIMEOUT_S,
        fetch_bytes: int = FETCH_BYTES,
        skips_expired: bool = True,
    ) -> None:
        """Open the connection. Raises SettingsRefused if librdkafka does not accept a setting.

        If `stores_offsets` is False, the group is not used and needs no ACLs. `patience_s` is the timeout of one query
        in seconds. `fetch_bytes` limits the bytes of one partition per fetch. If `skips_expired`, records that
        retention removes during the read are skipped; otherwise RecordsExpired is raised.
        """
        self._stores_offsets = stores_offsets
        self._patience_s = patience_s
        own = {
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest" if skips_expired else "error",
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.message.max.bytes": fetch_bytes,
        }
        self._consumer = open_consumer({**config, **own})

    def __enter__(self) -> "BoundedReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order. Raises TopicMissing if the topic does not exist."""
        listed = self._described(topic)
        if listed.error is not None and listed.error.code() in DENIED:
            raise _as_error(topic, listed.error)
        if not listed.partitions:
            raise errors.TopicMissing(f"topic {topic} does not exist, or its partitions have no leader yet")
        return [TopicPartition(topic, number) for number in sorted(listed.partitions)]

    def _described(self, topic: str) -> Any:
        return _patiently(
            topic, lambda: self._consumer.list_topics(topic, self._patience_s), patience_s=self._patience_s
        ).topics[topic]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return each partition's first existing offset, and the offset after its last record. Partitions whose leader
        does not answer are left out. If no leader answers, raises DataPlaneFailed."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        away: errors.DataPlaneFailed | None = None
        for led in self._by_leader(list(partitions)):
            try:
                first, end = (
                    self._offsets(led, at) for at in (confluent_kafka.OFFSET_BEGINNING, confluent_kafka.OFFSET_END)
                )
            except errors.DataPlaneFailed as failure:
                away = failure
            else:
                found |= {partition: (first[partition], end[partition]) for partition in led}
        if away is not None and not found:
            raise away
        return found

    def _by_leader(self, partitions: Sequence[TopicPartition]) -> list[list[TopicPartition]]:
        """Group the partitions by leader. Partitions without a leader form one group; a query for this group fails with
        the reason."""
        led: dict[int, list[TopicPartition]] = {}
        for topic in dict.fromkeys(partition.topic for partition in partitions):
            known = self._described(topic).partitions
            for partition in partitions:
                if partition.topic == topic:
                    leader = known[partition.partition].leader if partition.partition in known else -1
                    led.setdefault(leader, []).append(partition)
        return list(led.values())

    def at_time(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record at or after the time; partitions without such a record are
        left out."""
        found = self._offsets(list(partitions), time_ms)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def _offsets(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        """Return offsets by timestamp, with one query for all partitions. `at` is in milliseconds since 1970, or a
        special timestamp of ListOffsets (earliest, latest).

        librdkafka's own query for the start and end of a partition is not used: it took half a second for each
        partition.
        """
        asked = [confluent_kafka.TopicPartition(*partition, at) for partition in partitions]
        answers = _patiently(
            _topics(partitions),
            lambda: _each(self._consumer.offsets_for_times(asked, timeout=self._patience_s)),
            patience_s=self._patience_s,
        )
        return {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets of these partitions; partitions without a committed offset are left
        out."""
        wanted = list(partitions)
        asked = [confluent_kafka.TopicPartition(*partition) for partition in wanted]
        found = {}
        for answer in self._of_group(wanted, lambda: _each(self._consumer.committed(asked, GROUP_TIMEOUT_S))):
            if answer.offset >= 0:
                metadata = answer.metadata or ""
                found[TopicPartition(answer.topic, answer.partition)] = OffsetAndMetadata(answer.offset, -1, metadata)
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for the group, and wait for the result."""
        for part in commit_parts(offsets):
            self._commit([confluent_kafka.TopicPartition(*each, at.offset, at.metadata) for each, at in part.items()])

    def _commit(self, wanted: list[confluent_kafka.TopicPartition]) -> None:
        named = [TopicPartition(each.topic, each.partition) for each in wanted]
        self._of_group(named, lambda: _each(self._consumer.commit(offsets=wanted, asynchronous=False)))

    def _of_group(self, partitions: Iterable[TopicPartition], ask: Callable[[], T]) -> T:
        """Query the group's offsets. Raises GroupAuthorizationFailed if access to the group is refused."""

        def ask_and_poll() -> T:
            try:
                return ask()
            except KafkaException as failure:
                message = self._consumer.poll(0) if failure.args[0].code() in MOVING else None
                error = None if message is None else message.error()
                if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise KafkaException(error) from failure
                raise

        return _patiently(_topics(partitions), ask_and_poll, of_group=True)

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Step]:
        """Yield the records of each partition in its range of offsets (end exclusive), in steps as in `runs`."""
        for fetched in self.runs(ranges):
            records = {partition: filled_records(partition, run) for partition, run in fetched.messages.items()}
            yield Step(records, fetched.done)

    def runs(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Fetched]:
        """Yield the messages of each partition in its range of offsets (end exclusive), in the order of arrival.

        While no records arrive, yields an empty step about twice a second, so that the caller can give up if brokers
        are down for too long. A partition without a leader or with unreadable data does not delay other partitions.
        Raises DataUnreadable when every incomplete partition is unreadable.
        """
        reached = {partition: start for partition, (start, _) in ranges.items()}
        open_ = {partition for partition, (start, end) in ranges.items() if start < end}
        if open_ != set(ranges):
            yield Fetched({}, frozenset(ranges) - open_)
        self._consumer.assign([confluent_kafka.TopicPartition(*each, reached[each]) for each in sorted(open_)])
        # librdkafka remembers pauses across assignments, and an earlier read may have left a partition paused.
        self._consumer.resume([confluent_kafka.TopicPartition(*each) for each in sorted(open_)])
        stands = _Stands(self._consumer)
        try:
            while open_:
                first = self._consumer.poll(POLL_S)
                messages = [] if first is None else [first, *self._consumer.consume(BATCH, 0)]
                if not self._stores_offsets:
                    messages = [each for each in messages if each.error() is None or not _is_about_the_group(each)]
                runs: dict[TopicPartition, list[Message]] = {}
                done: set[TopicPartition] = set()
                for partition, own in _by_partition(messages).items():
                    if partition not in open_ or partition in stands.void:
                        continue
                    end = ranges[partition][1]
                    run, reached[partition], unreadable = _sorted_out(partition, own, reached[partition])
                    stands.record_result(partition, unreadable, moved=bool(run))
                    wanted = run if reached[partition] <= end else [each for each in run if _offset(each) < end]
                    if wanted:
                        runs[partition] = wanted
                    if reached[partition] >= end:
                        done.add(partition)
                open_ -= done
                yield Fetched(runs, frozenset(done))
                stands.try_again(open_, reached)
        finally:
            self._consumer.unassign()


class _Stands:
    """The partitions of one `runs` call that are paused at unreadable data. Messages of the partitions in `void` are
    ignored until the next seek."""

    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self._consumer = consumer
        self._tries: dict[TopicPartition, tuple[int, str]] = {}
        self._again_at = 0.0
        self.void: set[TopicPartition] = set()

    def record_result(self, partition: TopicPartition, unreadable: KafkaError | None, *, moved: bool) -> None:
        """Record the result of a poll for a partition. `moved` is True if records arrived."""
        if moved:
            self._tries.pop(partition, None)
        if unreadable is not None:
            tries = self._tries.get(partition, (0, ""))[0] + 1
            self._tries[partition] = tries, f"{unreadable.name()}: {unreadable.str()}"
            stand(self._consumer, partition)
            self.void.add(partition)

    def try_again(self, open_: AbstractSet[TopicPartition], reached: Mapping[TopicPartition, int]) -> None:
        """Read the paused partitions again, at most every `POLL_S`. Raises DataUnreadable when all `open_` partitions
        have failed UNREADABLE_TRIES times."""
        tried = {each: self._tries.get(each, (0, "")) for each in open_}
        if tried and all(tries >= UNREADABLE_TRIES for tries, _ in tried.values()):
            named = "; ".join(
                f"partition {each.name}: at offset {reached[each]}: {why}" for each, (_, why) in sorted(tried.items())
            )
            raise errors.DataUnreadable(named)
        if self.void and time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + POLL_S
            for each in self.void & open_:
                read_again(self._consumer, each, reached[each])
            self.void.clear()


def _by_partition(messages: list[Message]) -> dict[TopicPartition, list[Message]]:
    """Group messages by partition. An error without a partition is raised if it is fatal or about authorization."""
    places = {(each.topic(), each.partition()) for each in messages}
    if len(places) == 1 and None not in (place := places.pop()) and _are_records(messages):
        return {TopicPartition(*place): messages}  # type: ignore[arg-type]  # neither is None
    found: dict[TopicPartition, list[Message]] = {}
    for message in messages:
        topic, number, error = message.topic(), message.partition(), message.error()
        if topic is not None and number is not None and number >= 0:
            found.setdefault(TopicPartition(topic, number), []).append(message)
        elif error is not None and (error.code() in DENIED or error.fatal()):
            raise _as_error(topic or "", error)
    return found


def _topics(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(sorted({partition.topic for partition in partitions}))


def _patiently(topic: str, ask: Callable[[], T], *, of_group: bool = False, patience_s: float = ASK_TIMEOUT_S) -> T:
    """Return the result of the query `ask`. After a transient error the query is repeated, for at most `patience_s`
    seconds."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() not in MOVING or time.monotonic() >= deadline:
                raise _as_error(topic, error, of_group=of_group) from failure
            time.sleep(AGAIN_S)


def _each(answers: Sequence[confluent_kafka.TopicPartition] | None) -> Sequence[confluent_kafka.TopicPartition]:
    """Return the answers. Raises the first error among the answers. So an error of one partition is raised like an
    error of the whole query."""
    for answer in answers or ():
        if answer.error is not None:
            raise KafkaException(answer.error)
    return answers or ()


def _sorted_out(
    partition: TopicPartition, messages: list[Message], reached: int
) -> tuple[list[Message], int, KafkaError | None]:
    """Return the records among the messages, the next offset, and the error if the data at the next offset is
    unreadable."""
    if _are_records(messages):
        return messages, _offset(messages[-1]) + 1, None
    run = []
    for message in messages:
        error = message.error()
        if error is None:
            run.append(message)
            reached = _offset(message) + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            reached = max(reached, _offset(message))
        elif error.code() in DENIED or error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise _as_error(partition.topic, error)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise errors.RecordsExpired(f"partition {partition.name}: offset {reached} no longer exists")
        elif error.code() in UNREADABLE:
            return run, reached, error
    return run, reached, None


def _are_records(messages: Sequence[Message]) -> bool:
    # Compares types, because confluent-kafka's errors cannot be compared with None.
    return {type(each.error()) for each in messages} == {type(None)}


def _is_about_the_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "a message from librdkafka has an offset"
    return int(offset)


def _as_error(topic: str, error: KafkaError, *, of_group: bool = False) -> errors.ConsumerError:
    """Convert librdkafka's error. `of_group` is True if the query was about the group's offsets; its error may still be
    about a topic."""
    about = "the run's group" if of_group and error.code() not in OF_TOPICS else f"topic {topic}"
    kind = DENIED.get(error.code())
    if kind is not None:
        return kind(f"{about}: not authorized; allow the principal Read on it")
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return errors.TopicMissing(f"{about} does not exist, or was deleted")
    return errors.DataPlaneFailed(f"{about}: {error.name()}: {error.str()}")
