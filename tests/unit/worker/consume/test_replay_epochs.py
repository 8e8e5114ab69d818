"""After an offset reset whatever fails is retried again; what a dead worker's successor repeats is a copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fleet_consumer.contract import naming
from fleet_consumer.group.errors import OffsetLookupFailed, RebalanceInProgress, TopicAuthorizationFailed
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.headers import HeaderList, ReplayEpoch
from tests.unit.retry.policies import policies
from tests.unit.worker.scripted import P0, P1, Bench, ScriptedConsumer

R0 = TopicPartition(naming.retry_topic("g", "5s"), 0)
FAILED = naming.failed_topic("g")
LONG_AGO_MS = 1_600_000_000_000


def boom(record: Record) -> None:
    raise ConnectionError("down")


@dataclasses.dataclass
class Kafka:
    """State that outlives workers: commits with their metadata."""

    offsets: dict[TopicPartition, int] = dataclasses.field(default_factory=dict)
    metadata: dict[TopicPartition, str] = dataclasses.field(default_factory=dict)

    def worker(self, logs: dict[TopicPartition, Sequence[bytes]], **parts: Any) -> Bench:
        bench = Bench(boom, logs, policies=lambda: policies("5s", "5s"), **parts)
        bench.consumer.offsets, bench.consumer.metadata = self.offsets, self.metadata
        bench.consumer.untouched = lambda at: None
        return bench

    def fail_all(self, *, killed: bool = False) -> list[HeaderList]:
        """A main worker's life, in which all of a source's three records fail; the headers of their published."""
        bench = self.worker({P0: [b"v0", b"v1", b"v2"]})
        bench.steps(3)
        published = [headers for topic, _, _, headers in bench.producer.written if topic == R0.topic]
        if not killed:
            bench.loop.close(1)
        return published

    def retry(self, published: Sequence[HeaderList]) -> tuple[list[int], Bench]:
        """A retry worker's life over these published: the places of those that it handled."""
        seen: list[int] = []

        def handle(record: Record) -> None:
            seen.append(record.delivery.offset)
            boom(record)

        bench = self.worker({R0: [b"v"] * len(published)}, retry_group="g")
        bench.loop._rounds._times._handle = bench.intake.handling(handle, bench.watch)

        def laid(record: Record) -> Record:
            return dataclasses.replace(record, timestamp=LONG_AGO_MS, headers=published[record.offset])

        bench.consumer.record = laid
        bench.steps(8)
        return seen, bench


def written(bench: Bench, topic: str) -> list[HeaderList]:
    return [headers for name, _, _, headers in bench.producer.written if name == topic]


def reset(kafka: Kafka, partition: TopicPartition, offset: int) -> None:
    """As tools do it: an offset without metadata."""
    kafka.offsets[partition], kafka.metadata[partition] = offset, ""


def test_records_failing_again_after_an_offset_reset_are_retried_again() -> None:
    kafka = Kafka()
    published = kafka.fail_all()
    reset(kafka, P0, 0)
    published += kafka.fail_all()
    assert kafka.retry(published)[0] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("offset", [0, 1])
def test_two_resets_to_the_same_offset_are_two_readings(offset: int) -> None:
    kafka = Kafka()
    published = kafka.fail_all()
    for _ in range(2):
        reset(kafka, P0, offset)
        published += kafka.fail_all()
    assert len(kafka.retry(published)[0]) == len(published) == 9 - 2 * offset


def test_records_failing_again_after_offset_deletion_are_retried_again() -> None:
    kafka = Kafka()
    published = kafka.fail_all()
    kafka.offsets.clear()
    kafka.metadata.clear()
    published += kafka.fail_all()
    assert kafka.retry(published)[0] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("begun", ["never", "by a worker", "by a reset"])
def test_retry_publishes_of_a_worker_that_died_before_its_commit_are_repeated_as_copies(begun: str) -> None:
    kafka = Kafka()
    if begun != "never":
        kafka.fail_all()
    if begun == "by a reset":
        reset(kafka, P0, 0)
    elif begun == "by a worker":
        kafka.offsets[P0], kafka.metadata[P0] = 0, ReplayEpoch().metadata(0)
    published = kafka.fail_all(killed=True)
    assert kafka.offsets == {P0: 0}, "died before it could commit what it did"
    published += kafka.fail_all()
    seen, bench = kafka.retry(published)
    assert (seen, bench.stats.suppressed) == ([0, 1, 2], 3)


def test_retry_topic_read_again_writes_new_retry_publishes() -> None:
    kafka = Kafka()
    published = kafka.fail_all()
    _, first = kafka.retry(published)
    first.loop.close(1)
    reset(kafka, R0, 0)
    _, second = kafka.retry(published)
    second.loop.close(1)
    told = [dict(headers)["kr-replay-epoch"] for bench in (first, second) for headers in written(bench, R0.topic)]
    assert len(told) == 6
    assert len(set(told)) == 2


def test_records_added_to_a_reread_retry_topic_keep_their_replay_epoch() -> None:
    """So that copies which came different ways are copies in the failed topic."""
    kafka = Kafka()
    (headers, *_) = kafka.fail_all()
    kafka.retry([])[1].loop.close(1)
    _, bench = kafka.retry([headers])
    assert dict(written(bench, R0.topic)[0])["kr-replay-epoch"] == dict(headers)["kr-replay-epoch"]


def test_nothing_is_handled_before_its_replay_epoch_is_known() -> None:
    kafka = Kafka()
    bench = kafka.worker({P0: [b"v0", b"v1"]})
    bench.consumer.ask_error = OffsetLookupFailed("no coordinator")
    bench.steps(3)
    assert (bench.producer.sent, kafka.offsets) == ([], {})
    bench.consumer.ask_error = None
    bench.clock.now += 10
    bench.steps(2)
    assert [value for _, value in bench.producer.sent] == [b"v0", b"v1"]


def test_nothing_is_handled_before_a_new_replay_epoch_is_committed() -> None:
    kafka = Kafka()
    bench = kafka.worker({P0: [b"v0"]})
    bench.consumer.commit_error = RebalanceInProgress("not now")
    bench.steps(3)
    assert bench.producer.sent == []
    bench.consumer.commit_error = None
    bench.clock.now += 10
    bench.steps(2)
    assert [value for _, value in bench.producer.sent] == [b"v0"]


def test_a_partition_that_goes_takes_no_replay_epoch_but_its_own_with_it() -> None:
    kafka = Kafka()
    bench = kafka.worker({P0: [b"v0", b"v1"], P1: [b"w0"]}, per_poll=1)
    bench.steps(1)
    bench.consumer.revoke(P1)
    bench.steps(2)
    replay_epochs = [
        dict(headers).get("kr-replay-epoch")
        for _, _, value, headers in bench.producer.written
        if value in (b"v0", b"v1")
    ]
    assert len(replay_epochs) == 2
    assert replay_epochs[0] is not None
    assert replay_epochs[0] == replay_epochs[1]


def test_partition_revoked_before_its_replay_epoch_is_known_keeps_its_commit() -> None:
    kafka = Kafka({P0: 1}, {P0: ReplayEpoch("a" * 16).metadata(1)})
    bench = kafka.worker({P0: [b"v0", b"v1"]})
    bench.consumer.ask_error = OffsetLookupFailed("no coordinator")
    bench.steps(1)
    bench.consumer.revoke(P0)
    assert (kafka.offsets, kafka.metadata) == ({P0: 1}, {P0: ReplayEpoch("a" * 16).metadata(1)})


def test_the_start_of_a_quiet_partition_is_committed_with_its_replay_epoch() -> None:
    kafka = Kafka()
    bench = kafka.worker({P0: []})
    commit: Callable[..., None] = bench.consumer.commit
    commits: list[Any] = []

    def recorded(offsets: Any, timeout_s: float) -> None:
        commits.append(offsets)
        commit(offsets, timeout_s)

    consumer: ScriptedConsumer = bench.consumer
    consumer.commit = recorded  # type: ignore[method-assign]
    bench.clock.now += 6
    bench.steps(2)
    assert kafka.offsets == {P0: 0}
    assert " fleet-replay-epoch=0;id=" in kafka.metadata[P0]
    assert len(commits) == 2, "the replay epoch, and then whose hands it is in"


def test_partition_whose_commit_may_not_be_read_stops_no_other() -> None:
    """Its start is not known then, either: Read or Describe on its topic was lost."""
    kafka = Kafka()
    bench = kafka.worker({P0: [b"v0"], P1: []})
    committed, position = bench.consumer.committed, bench.consumer.position

    def ask(partitions: Sequence[TopicPartition], timeout_s: float) -> Any:
        if P1 in partitions:
            raise TopicAuthorizationFailed("topic t: not authorized")
        return committed(partitions, timeout_s)

    bench.consumer.committed = ask
    bench.consumer.position = lambda each: None if each == P1 else position(each)
    bench.clock.now += 6
    bench.steps(3)
    assert [value for _, value in bench.producer.sent] == [b"v0"]
    bench.consumer.committed, bench.consumer.position = committed, position
    bench.clock.now += 6
    bench.steps(2)
    bench.loop.close(1)
    assert kafka.offsets == {P0: 1, P1: 0}
