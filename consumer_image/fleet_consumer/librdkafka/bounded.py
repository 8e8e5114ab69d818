"""Reading partitions from one offset to another, with the progress stored in a group without members.

Nothing joins the group, so its coordinator takes commits without a generation (Kafka calls that a simple consumer).
Nothing here may know the content of records.
"""

from __future__ import annotations

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
"""The longest time a broker holds a fetch without records: at an end there is nothing to come."""
FETCH_BYTES: Final = 256 * 1024
"""The bytes of one partition per fetch, so that partitions come in turns; a larger record comes alone."""
ASK_TIMEOUT_S: Final = 30.0
"""The timeout of one query; brokers may just be electing a coordinator."""

GROUP_TIMEOUT_S: Final = 5.0
"""The timeout of one attempt to get the group's offsets. To librdkafka, a coordinator that refuses the group looks like
one that is not found; the reason comes as a message, which is polled for after each attempt."""

AGAIN_S: Final = 0.5
UNREADABLE_TRIES: Final = 5
"""Number of times, `POLL_S` apart or more, that data are found unreadable before that ends a reading which has nothing
else left to read."""
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
"""Errors that pass when brokers have restarted, or when the offsets topic of a new cluster has been created."""

DENIED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: errors.TopicAuthorizationFailed,
    KafkaError.GROUP_AUTHORIZATION_FAILED: errors.GroupAuthorizationFailed,
}

OF_TOPICS: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART})
"""Errors about a topic, whatever was asked."""


class Step(NamedTuple):
    """One batch: records by partition, in their order, and the partitions of which nothing more will come."""

    records: Mapping[TopicPartition, list[Record]]
    done: frozenset[TopicPartition]


class Fetched(NamedTuple):
    """The same with messages in place of records; none is an error, and no list is empty."""

    messages: Mapping[TopicPartition, list[Message]]
    done: frozenset[TopicPartition]


class BoundedReader:
    """One connection to the cluster. `config` is librdkafka's (`settings.consumer_config`), whose group keeps the
    offsets. One thread uses it; close it, or use it as a context manager.

    Every call raises TopicAuthorizationFailed, GroupAuthorizationFailed and DataPlaneFailed; after any of them the
    reader may be asked again.
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
        """`stores_offsets` False: the group is not used, and needs no rights. `patience_s` is the timeout of one query.
        `fetch_bytes` are those of one partition per fetch. `skips_expired`: records that retention has removed
        meanwhile are skipped; else RecordsExpired is raised.

        Raises SettingsRefused when librdkafka does not take a setting.
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

    def __enter__(self) -> BoundedReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, in order. Raises TopicMissing when there is no such topic."""
        listed = self._described(topic)
        if listed.error is not None and listed.error.code() in DENIED:
            raise _as_error(topic, listed.error)
        if not listed.partitions:
            raise errors.TopicMissing(f"topic {topic} does not exist, or has no leader yet")
        return [TopicPartition(topic, number) for number in sorted(listed.partitions)]

    def _described(self, topic: str) -> Any:
        return _patiently(
            topic, lambda: self._consumer.list_topics(topic, self._patience_s), patience_s=self._patience_s
        ).topics[topic]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """For each partition the first offset that is there, and the one after the last.

        Each leader is asked by itself. Partitions whose leader is away are left out, unless all are.
        """
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
        """The partitions by leader; those without one together, for a query that fails with the reason."""
        led: dict[int, list[TopicPartition]] = {}
        for topic in dict.fromkeys(partition.topic for partition in partitions):
            known = self._described(topic).partitions
            for partition in partitions:
                if partition.topic == topic:
                    leader = known[partition.partition].leader if partition.partition in known else -1
                    led.setdefault(leader, []).append(partition)
        return list(led.values())

    def at_time(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """For each partition the first record that is not older than a time; those without one are left out."""
        found = self._offsets(list(partitions), time_ms)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def _offsets(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        """Offsets by time, or at ListOffsets' two special times: one query for all partitions, where librdkafka's query
        for the watermarks of one took half a second."""
        asked = [confluent_kafka.TopicPartition(*partition, at) for partition in partitions]
        answers = _patiently(
            _topics(partitions),
            lambda: _each(self._consumer.offsets_for_times(asked, timeout=self._patience_s)),
            patience_s=self._patience_s,
        )
        return {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that the group has stored for these partitions; those without are left out."""
        wanted = list(partitions)
        asked = [confluent_kafka.TopicPartition(*partition) for partition in wanted]
        found = {}
        for answer in self._of_group(wanted, lambda: _each(self._consumer.committed(asked, GROUP_TIMEOUT_S))):
            if answer.offset >= 0:
                metadata = answer.metadata or ""
                found[TopicPartition(answer.topic, answer.partition)] = OffsetAndMetadata(answer.offset, -1, metadata)
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store offsets in the group, and wait until that is done."""
        for part in commit_parts(offsets):
            self._commit([confluent_kafka.TopicPartition(*each, at.offset, at.metadata) for each, at in part.items()])

    def _commit(self, wanted: list[confluent_kafka.TopicPartition]) -> None:
        named = [TopicPartition(each.topic, each.partition) for each in wanted]
        self._of_group(named, lambda: _each(self._consumer.commit(offsets=wanted, asynchronous=False)))

    def _of_group(self, partitions: Iterable[TopicPartition], ask: Callable[[], T]) -> T:
        """The answer to a query about the group's offsets; raises the coordinator's refusal of the group."""

        def heard() -> T:
            try:
                return ask()
            except KafkaException as failure:
                message = self._consumer.poll(0) if failure.args[0].code() in MOVING else None
                error = None if message is None else message.error()
                if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise KafkaException(error) from failure
                raise

        return _patiently(_topics(partitions), heard, of_group=True)

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Step]:
        """The records of each partition from its first offset to before the second, as `runs` gives them."""
        for fetched in self.runs(ranges):
            records = {partition: filled_records(partition, run) for partition, run in fetched.messages.items()}
            yield Step(records, fetched.done)

    def runs(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Fetched]:
        """The messages of each partition from its first offset to before the second, as brokers give them.

        Yields an empty step about twice a second while nothing comes, so that the caller can give up when brokers are
        away for too long. A partition whose leader is away delays no other, nor does one with data that cannot be read:
        DataUnreadable is raised when all others are done.
        """
        reached = {partition: start for partition, (start, _) in ranges.items()}
        open_ = {partition for partition, (start, end) in ranges.items() if start < end}
        if open_ != set(ranges):
            yield Fetched({}, frozenset(ranges) - open_)
        self._consumer.assign([confluent_kafka.TopicPartition(*each, reached[each]) for each in sorted(open_)])
        # librdkafka remembers a pause across assignments, such as that of a partition at which the last reading stood.
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
                    stands.note(partition, unreadable, moved=bool(run))
                    wanted = run if reached[partition] <= end else [each for each in run if _offset(each) < end]
                    if wanted:
                        runs[partition] = wanted
                    if reached[partition] >= end:
                        done.add(partition)
                open_ -= done
                yield Fetched(runs, frozenset(done))
                stands.look(open_, reached)
        finally:
            self._consumer.unassign()


class _Stands:
    """The partitions of one reading that stand at data which cannot be read. `void`: to be sought first."""

    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self._consumer = consumer
        self._tries: dict[TopicPartition, tuple[int, str]] = {}
        self._again_at = 0.0
        self.void: set[TopicPartition] = set()

    def note(self, partition: TopicPartition, unreadable: KafkaError | None, *, moved: bool) -> None:
        """Take in what came of a partition; `moved`: records came."""
        if moved:
            self._tries.pop(partition, None)
        if unreadable is not None:
            tries = self._tries.get(partition, (0, ""))[0] + 1
            self._tries[partition] = tries, f"{unreadable.name()}: {unreadable.str()}"
            stand(self._consumer, partition)
            self.void.add(partition)

    def look(self, open_: AbstractSet[TopicPartition], reached: Mapping[TopicPartition, int]) -> None:
        """Try them again now and then. Raises DataUnreadable when they are all that is left."""
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
    """Messages by partition; an error that names no partition concerns all, and is raised."""
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
    """The answer to a query, repeated while brokers are changing roles."""
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
    """The answers; the first error among them is raised, as librdkafka raises one of the whole query."""
    for answer in answers or ():
        if answer.error is not None:
            raise KafkaException(answer.error)
    return answers or ()


def _sorted_out(
    partition: TopicPartition, messages: list[Message], reached: int
) -> tuple[list[Message], int, KafkaError | None]:
    """The records among messages, the offset up to which everything is known, and why what follows is unreadable."""
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
            raise errors.RecordsExpired(f"partition {partition.name}: no record at {reached} any more")
        elif error.code() in UNREADABLE:
            return run, reached, error
    return run, reached, None


def _are_records(messages: Sequence[Message]) -> bool:
    """True if none of them is an error: the common case, in which nothing is to be sorted out."""
    # By type: confluent-kafka's errors cannot be compared with None.
    return {type(each.error()) for each in messages} == {type(None)}


def _is_about_the_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "librdkafka numbers what it gives"
    return int(offset)


def _as_error(topic: str, error: KafkaError, *, of_group: bool = False) -> errors.ConsumerError:
    """`of_group`: the query was about the group's offsets, in whose answer a topic may be refused all the same."""
    about = "the run's group" if of_group and error.code() not in OF_TOPICS else f"topic {topic}"
    kind = DENIED.get(error.code())
    if kind is not None:
        return kind(f"{about}: not authorized; allow the principal Read on it")
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return errors.TopicMissing(f"{about} does not exist (any more)")
    return errors.DataPlaneFailed(f"{about}: {error.name()}: {error.str()}")
