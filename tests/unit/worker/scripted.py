"""A consumer and a producer that do what a test says, and a clock that only a test moves.

They stand where the worker meets Kafka. The consumer keeps Kafka's promises as far as the loop can see them: positions
move with what is handed out, paused partitions give nothing, callbacks run inside poll and close, and what was never
committed is read again after an assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from confluent_kafka import Message

from fleet_consumer.consumer.resets import OutOfRangeReport, TruncationReport
from fleet_consumer.contract.breaker_state import Breakers
from fleet_consumer.contract.policies import Policies
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.fetch.read_errors import PartitionError
from fleet_consumer.group.errors import CommitRefused, Refusal
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.handlers.executor import Executor
from fleet_consumer.librdkafka.fetched import fetched_records
from fleet_consumer.librdkafka.producer import ProduceFailed
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.retry.headers import ReplayEpoch
from fleet_consumer.worker.breaker.pacing import BudgetPacing, FollowingPacing
from fleet_consumer.worker.config.mounted_file import skip_file
from fleet_consumer.worker.consume.concurrent import ConcurrentRounds
from fleet_consumer.worker.consume.inline import InlineRounds
from fleet_consumer.worker.consume.intake import Intake, RetryIntake
from fleet_consumer.worker.consume.loop import Loop
from fleet_consumer.worker.consume.outbox import Outbox
from fleet_consumer.worker.consume.outcomes import OutcomeRules, Outcomes
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.pending import Concurrency
from fleet_consumer.worker.consume.progress import Pauses
from fleet_consumer.worker.consume.replay_epochs import ReplayEpochs
from fleet_consumer.worker.consume.skips import Skips
from fleet_consumer.worker.consume.writing import Writing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.stats import Stats
from tests.support.clock import StillClock

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
FAILED = "_fleet.g.failed"


def values(count: int) -> list[bytes]:
    """Values of as many records: their offsets."""
    return [f"{number}".encode() for number in range(count)]


class ScriptedConsumer:
    """Logs of records, read from the committed offsets on; `script` holds what the next polls do first."""

    def __init__(self, clock: StillClock, logs: Mapping[TopicPartition, Sequence[bytes]], per_poll: int = 500) -> None:
        self.logs = {partition: list(values) for partition, values in logs.items()}
        self.offsets: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, str] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.script: list[Callable[[], object]] = []
        self.key: Callable[[bytes], bytes | None] = lambda value: b"k"
        self.record: Callable[[Record], Record] = lambda record: record
        self.polls = 0
        self.per_run = 4
        self.session = True
        self.closed = False
        self.stands_at: dict[TopicPartition, PartitionError] = {}
        self.commit_error: Exception | None = None
        self.refuses: dict[TopicPartition, Refusal] = {}
        self.requests: list[frozenset[TopicPartition]] = []
        self.ask_error: Exception | None = None
        # What is committed where nobody has committed yet; by default it is as if a worker had, for most tests are
        # about what comes after the first commit.
        self.untouched: Callable[[int], OffsetAndMetadata | None] = lambda at: OffsetAndMetadata(
            at, -1, ReplayEpoch().metadata(at)
        )
        self.held_commits: list[Callable[[], object]] | None = None
        self._clock = clock
        self._per_poll = per_poll
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._callbacks: dict[str, Callable[[Sequence[TopicPartition]], None]] = {}

    def subscribe(self, topics: Iterable[str], **callbacks: Callable[[Sequence[TopicPartition]], None]) -> None:
        self._callbacks = callbacks
        self.script.append(lambda: self.assign(*self.logs))

    def assign(self, *partitions: TopicPartition) -> None:
        self._positions |= {each: self.offsets.get(each, 0) for each in partitions}
        self._paused -= set(partitions)
        self._callbacks["on_assigned"](partitions)

    def revoke(self, *partitions: TopicPartition) -> None:
        self._callbacks["on_revoked"](partitions)
        self._drop(partitions)

    def lose(self, *partitions: TopicPartition) -> None:
        self._drop(partitions)
        self._callbacks["on_lost"](partitions)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            del self._positions[each]

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        self.polls += 1
        if self.script:
            self.script.pop(0)()
        runs, left = [], self._per_poll if max_records is None else max_records
        for each, position in self._positions.items():
            values = self.logs[each][position : position + left] if each not in self._paused and self.session else []
            if values:
                records = fetched_records(
                    each,
                    [
                        _message(self.record(Record(*each, position + i, 5, self.key(value), value, ())))
                        for i, value in enumerate(values)
                    ],
                )
                # A poll may return several runs of one partition, like a real one.
                runs += [Run(each, records[at : at + self.per_run]) for at in range(0, len(records), self.per_run)]
                self._positions[each] += len(values)
                left -= len(values)
        if not runs:
            self._clock.now += timeout_s
        return Records(runs)

    def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout_s: float = 60.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self.ask_error is not None:
            raise self.ask_error
        return {
            each: OffsetAndMetadata(self.offsets[each], -1, self.metadata[each])
            if each in self.metadata
            else self.untouched(self.offsets.get(each, 0))
            for each in (self.logs if partitions is None else partitions)
        }

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.requests.append(frozenset(offsets))
        self.offsets |= {each: offset.offset for each, offset in offsets.items() if each not in self.refuses}
        self.metadata |= {each: offset.metadata for each, offset in offsets.items() if each not in self.refuses}
        if refused := {each: self.refuses[each] for each in offsets if each in self.refuses}:
            error = CommitRefused("refused")
            error.not_committed = refused
            raise error

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: Any = None) -> None:
        def answer() -> None:
            error: Exception | None = None
            try:
                self.commit(offsets, 0)
            except Exception as refused:
                error = refused
            callback(offsets, error)

        if self.held_commits is None:
            answer()
        else:
            self.held_commits.append(answer)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused |= set(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused -= set(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        return {each: self.log_starts.get(each, 0) for each in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        return {each: len(self.logs[each]) for each in partitions}

    def look_up_ends(self, partitions: Iterable[TopicPartition]) -> Ticket[dict[TopicPartition, int]]:
        ticket: Ticket[dict[TopicPartition, int]] = Ticket()
        if self.ask_error is None:
            ticket.end({each: len(self.logs[each]) for each in partitions})
        return ticket

    def position(self, partition: TopicPartition) -> int | None:
        return self._positions[partition]

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def unreadable(self) -> dict[TopicPartition, PartitionError]:
        return self.stands_at

    def out_of_range(self) -> OutOfRangeReport:
        return OutOfRangeReport(count=1, skipped=7)

    def truncations(self) -> TruncationReport:
        return TruncationReport(count=2, cut=9)

    def holds_session(self) -> bool:
        return self.session

    def wakeup(self) -> None:
        """Nobody waits here."""

    def close(self, timeout_s: float = 30.0, leave: str = "default") -> None:
        if self._positions:
            self.revoke(*list(self._positions))
        self.closed = True


def _message(record: Record) -> Message:
    return Message(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=(1, record.timestamp),
        key=record.key,
        value=record.value,
        headers=list(record.headers),
        leader_epoch=record.leader_epoch,
    )


class ScriptedHandle:
    """A send whose fate the producer decides."""

    def __init__(self) -> None:
        self.done = False
        self.error: ProduceFailed | None = None


class ScriptedProducer:
    """Writes to `written`, unless `refuse` gives an error for the record or `silent` keeps acknowledgements back.

    `slow` names the values of records that are acknowledged late: not before they are taken out of it. `sent` holds
    every send, whatever becomes of it; `waits` the time-outs of all waits. A wait that is in vain takes its time.
    """

    def __init__(self, clock: StillClock) -> None:
        self.written: list[tuple[str, Any, Any, list[tuple[str, bytes | None]]]] = []
        self.sent: list[tuple[str, Any]] = []
        self.waits: list[float] = []
        self.silent = False
        self.slow: set[Any] = set()
        self.refuse: Callable[[str, Any, Sequence[Any]], ProduceFailed | None] = lambda topic, value, headers: None
        self._clock = clock
        self._open: list[tuple[ScriptedHandle, tuple[str, Any, Any, list[Any]]]] = []

    def send(self, topic: str, *, key: Any, value: Any, headers: Any = (), partition: int | None = None) -> Any:
        handle = ScriptedHandle()
        self.sent.append((topic, value))
        self._open.append((handle, (topic, key, value, list(headers))))
        return handle

    def flush(self, timeout_s: float) -> int:
        self.waits.append(timeout_s)
        waiting, self._open = self._open, []
        for each in waiting:
            if self.silent or each[1][2] in self.slow:
                self._open.append(each)
            else:
                self._answer(*each)
        if self._open:
            self._clock.now += timeout_s
        return len(self._open)

    def acknowledge_first(self) -> None:
        """The oldest send is answered, whatever holds the others back."""
        self._answer(*self._open.pop(0))

    def _answer(self, handle: ScriptedHandle, record: tuple[str, Any, Any, list[Any]]) -> None:
        topic, key, value, headers = record
        handle.error, handle.done = self.refuse(topic, value, headers), True
        if handle.error is None:
            self.written.append((topic, key, value, headers))

    def abandon(self) -> None:
        """Everything that is open fails."""
        for handle, (topic, *_) in self._open:
            handle.error, handle.done = ProduceFailed(topic, "_PURGE_QUEUE", "given up"), True
        self._open.clear()


class Bench:
    """A consume loop on scripted parts."""

    def __init__(
        self,
        handle: Callable[[Record], Any],
        logs: Mapping[TopicPartition, Sequence[bytes]],
        *,
        per_poll: int = 500,
        outputs: Sequence[str] = ("out",),
        executor: Executor | None = None,
        concurrency: Concurrency | None = None,
        policies: Callable[[], Policies | None] = lambda: None,
        retry_group: str | None = None,
        error_text: bool = True,
        skips: str | None = None,
    ) -> None:
        self.clock = StillClock()
        self.consumer = cast(Any, ScriptedConsumer(self.clock, logs, per_poll))
        self.producer = ScriptedProducer(self.clock)
        self.producers_made = 0
        self.stats = Stats()
        self.watch = Watch()
        outbox = Outbox(self._make_producer)
        self.pauses = Pauses(self.consumer)
        self.breakers = Breakers()
        self.pacing: Any = BudgetPacing(policies, self.clock)
        self.intake: Any = Intake()
        if retry_group is not None:
            self.pacing = FollowingPacing(policies, lambda: self.breakers, lambda wanted: None, self.clock)
            self.intake = RetryIntake(
                self.consumer, self.pauses, policies, group_id=retry_group, stats=self.stats, clock=self.clock
            )
        replay_epochs = ReplayEpochs(self.consumer, self.pauses, self.clock, bounded=retry_group is not None)
        rules = OutcomeRules(
            group_id="g",
            listed=frozenset(outputs),
            failed_topic="_fleet.g.failed",
            policies=policies,
            error_text=error_text,
        )
        present_again = replay_epochs.presenting(self.intake.present_again)
        self.outcomes = Outcomes(rules, outbox, present_again, pacing=self.pacing, stats=self.stats, clock=self.clock)
        self.writing = Writing(
            outbox=outbox, outcomes=self.outcomes, pauses=self.pauses, stats=self.stats, clock=self.clock
        )
        self.parts = parts = LoopParts(
            consumer=self.consumer,
            handle=self.intake.handling(handle, self.watch),
            outcomes=self.outcomes,
            writing=self.writing,
            intake=self.intake,
            replay_epochs=replay_epochs,
            skips=Skips(None if skips is None else skip_file(skips, "u", self.clock)),
            pacing=self.pacing,
            pauses=self.pauses,
            topics=("t",),
            commit_interval_s=5,
            drain_s=20,
            stats=self.stats,
            watch=self.watch,
            clock=self.clock,
            pause=self._pause,
        )
        if executor is None or concurrency is None:
            self.loop: Any = Loop(parts, lambda loop: InlineRounds(loop, parts))
        else:
            at_once = concurrency.poll_max if concurrency.batch else executor.size
            self.loop = Loop(parts, lambda loop: ConcurrentRounds(loop, parts, executor, concurrency), at_once=at_once)
        self.loop.start()

    def _make_producer(self) -> Any:
        self.producers_made += 1
        return self.producer

    def _pause(self, seconds: float) -> None:
        self.clock.now += seconds

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.loop.step()

    def topic(self, name: str) -> list[Any]:
        """The values written to a topic, in order."""
        return [value for topic, _, value, _ in self.producer.written if topic == name]
