"""Reading from librdkafka. Only the thread that holds a lock uses librdkafka's consumer.

librdkafka fetches records in the background, and the user's thread takes them inside `poll`. With a separate thread
that reads ahead, the throughput was only 75 % of this, and 49 % if the handler reads every field (decision 0009).
`poll` also waits inside librdkafka, but in short slices, because rebalances and wake-ups cannot interrupt such a wait.

The fetch thread executes commands, runs librdkafka's callbacks while the user's thread handles records, and replaces a
consumer whose connections fail. When the fetch thread requests the lock, the user's thread releases it.

Back-pressure means that `poll` reads no more records. librdkafka's `pause` would discard prefetched data and fetch it
again (measured: 12 times the data, 11 times the time). Only partitions with too many records held back are paused in
librdkafka.

Decisions: docs/decisions/0008-renewed-credentials.md, docs/decisions/0009-lazy-records.md.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from fleet_consumer.clock import Clock
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer, ReadAhead, SoughtPlaces, value_bytes
from fleet_consumer.fetch.read_errors import PartitionError, ReadErrors, failure_of, silence_of
from fleet_consumer.group.errors import DataPlaneFailed, DataUnreadable, InternalFailure
from fleet_consumer.librdkafka.fetched import at, leader_epoch, read_again, seek, stand
from fleet_consumer.librdkafka.settings import Login, SettingsRefused, open_consumer, tls_files
from fleet_consumer.record import Records, TopicPartition

logger = logging.getLogger(__name__)

READ_BATCH = 500
"""Maximum number of messages per read; values from 100 to 1000 were measured as the fastest."""
READ_AHEAD_BYTES = 32 * 1024 * 1024
"""Maximum bytes of record values that wait for the user. Above this limit, the fetch thread does not call librdkafka to
run callbacks, because the call may return another record. Records that librdkafka itself prefetches are limited by
`queued.max.messages.kbytes`."""
SLICE_S = 0.02
"""Maximum seconds of one wait inside librdkafka. A waiting `poll` notices other changes with at most this delay. Half
of this value would double the CPU use of an idle consumer (a few thousandths of a core)."""
SERVE_S = 1.0
"""Seconds between two calls in which the fetch thread lets librdkafka run its callbacks."""

Command = Callable[[confluent_kafka.Consumer], None]

_offset: Callable[[Message], Any] = Message.offset
_error: Callable[[Message], Any] = Message.error
_topic: Callable[[Message], Any] = Message.topic
_partition: Callable[[Message], Any] = Message.partition


class FetchThread:
    """Reads the assigned partitions. The fetch thread calls `on_released` after releasing the consumer's lock.

    The constructor opens librdkafka's consumer, and raises SettingsRefused for values that librdkafka does not accept.
    `start` starts the thread; `close` ends the thread and the consumer. Unless noted otherwise, only the user's thread
    may call a method.
    """

    def __init__(self, config: Mapping[str, Any], *, name: str, on_released: Callable[[], None], clock: Clock) -> None:
        self.read_ahead = ReadAhead()
        self.sought = SoughtPlaces()
        # The error that ended reading; written by the fetch thread, read by any thread.
        self.failure: InternalFailure | None = None
        self._errors = ReadErrors(clock)
        self._clock = clock
        self._config = config
        # The state of the TLS files is recorded before librdkafka reads the files, so that no renewal in between is
        # missed.
        self._tls_files = tls_files(config)
        self._login = Login(config)
        self._consumer = self._open()
        self._on_released = on_released
        self._commands: deque[Command] = deque()
        # Set by commands and `close`; ends the fetch thread's wait.
        self._attention = threading.Event()
        self._closing = False
        # True while the fetch thread waits for the lock. The user's thread then does not acquire the lock; otherwise
        # the fetch thread would never get it.
        self._asked = False
        # Guards librdkafka's consumer and the attributes below. The user's thread never waits for this lock. Reentrant:
        # after a signal handler's exception, the user's thread can find out whether it still holds the lock.
        self._consumer_lock = threading.RLock()
        # True if librdkafka's callbacks have run since the fetch thread last checked.
        self._served = False
        self._buffers: dict[tuple[str, int], PartitionBuffer] = {}
        # Keyed by partition: the offset after the last record from librdkafka, and the record's leader epoch. A new
        # consumer continues at this offset.
        self._next: dict[tuple[str, int], tuple[int, int]] = {}
        self._only_topic: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def last_error(self) -> DataPlaneFailed | None:
        """The error that prevents reading, or None (`ReadErrors.current`). Any thread may read this property."""
        return self._errors.current()

    @property
    def unreadable(self) -> dict[TopicPartition, PartitionError]:
        """The partitions whose reading is stopped at unreadable data. Any thread may read this property."""
        return self._errors.unreadable

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def assign(self, buffers: Collection[PartitionBuffer]) -> None:
        """Add these partitions, each read from its buffer's position and leader epoch."""
        added = [(buffer, buffer.topic_partition, buffer.position, buffer.leader_epoch) for buffer in buffers]

        def command(consumer: confluent_kafka.Consumer) -> None:
            consumer.incremental_assign([at(part, offset, epoch) for _, part, offset, epoch in added])
            # Resume, because librdkafka remembers a pause across assignments.
            consumer.resume([at(part) for _, part, _, _ in added])
            for buffer, part, offset, epoch in added:
                self._reads_from(part, buffer, offset, epoch)

        self._do(command)

    def unassign(self, partitions: frozenset[TopicPartition]) -> None:
        def command(consumer: confluent_kafka.Consumer) -> None:
            known = [part for part in partitions if self._buffers.pop(part, None) is not None]
            consumer.incremental_unassign([at(part) for part in known])
            for part in known:
                del self._next[part]
            self._errors.keep(self._buffers)

        self._do(command)

    def seek(self, buffer: PartitionBuffer) -> None:
        """Continue at the position of `buffer`, which replaces the partition's former buffer."""
        part, offset, epoch = buffer.topic_partition, buffer.position, buffer.leader_epoch

        def command(consumer: confluent_kafka.Consumer) -> None:
            if part in self._buffers:
                if self._errors.is_void(part):
                    consumer.resume([at(part)])
                seek(consumer, part, offset, epoch)
                self._reads_from(part, buffer, offset, epoch)

        self._do(command)

    def hold(self, partition: TopicPartition) -> None:
        self._do(lambda consumer: consumer.pause([at(partition)]) if partition in self._buffers else None)

    def unhold(self, partition: TopicPartition) -> None:
        self._do(lambda consumer: consumer.resume([at(partition)]) if partition in self._buffers else None)

    def stands(self, buffer: PartitionBuffer, offset: int) -> None:
        """Record that the data at `offset` is unreadable; librdkafka does not report this error. Does nothing if the
        partition's position has changed."""
        part = buffer.topic_partition

        def command(consumer: confluent_kafka.Consumer) -> None:
            if self._buffers.get(part) is buffer and self._next[part][0] == offset:
                self._errors.put(part, offset, silence_of(part, offset))

        self._do(command)

    def take_records(self, limit: int, on_out_of_range: Callable[[PartitionBuffer, OutOfRange], None]) -> Records:
        if limit and not self.read_ahead.waiting:
            self._read_locked(0.0, limit)
        return self.read_ahead.take_records(limit, on_out_of_range)

    def wait(self, timeout_s: float, changed: threading.Event) -> None:
        """Wait until there may be records to take, or `changed` is set."""
        deadline = self._clock.monotonic() + timeout_s
        while not changed.is_set() and (left := deadline - self._clock.monotonic()) > 0:
            came = None if self.read_ahead.waiting else self._read_locked(min(left, SLICE_S), 1)
            if came is None:
                # Nothing is assigned, or the fetch thread waits for the lock and will call `on_released` after
                # releasing it.
                changed.wait(left)
                return
            if self.read_ahead.pending:
                return

    def start_over(self, buffers: Collection[PartitionBuffer]) -> None:
        """Drop all records read ahead, and read from the positions of `buffers`, which replace all former buffers.
        Called after a read on the user's thread was interrupted, because messages of unknown partitions may be lost."""
        self._release_lock()
        # A new object, because an interruption between an append or pop and the update of its count leaves a wrong
        # count.
        self.read_ahead = ReadAhead()

        def command(consumer: confluent_kafka.Consumer) -> None:
            for buffer in buffers:
                part = buffer.topic_partition
                if part in self._buffers:
                    seek(consumer, part, buffer.position)
                else:
                    consumer.incremental_assign([at(part, buffer.position)])
                self._reads_from(part, buffer, buffer.position, buffer.leader_epoch)
            consumer.resume([at(buffer.topic_partition) for buffer in buffers])

        self._do(command)

    def _reads_from(self, part: TopicPartition, buffer: PartitionBuffer, offset: int, epoch: int) -> None:
        self._buffers[part] = buffer
        self._next[part] = offset, epoch
        self._errors.readable(part)

    def _read_locked(self, timeout_s: float, limit: int) -> int | None:
        """Read until `limit` records wait or librdkafka has no more.

        Returns the number of messages of the last read, or None if the lock was not acquired. On the main thread,
        signal handlers run inside this method and may raise any exception. The lock is then released, the exception
        reaches the user, and a later call continues reading.
        """
        taken = False
        try:
            # Do not read while the fetch thread wants the lock: its command may invalidate the records read now.
            if self._asked or self._commands or not self._buffers:
                return None
            taken = self._consumer_lock.acquire(blocking=False)
            if not taken:
                return None
            while (came := self._fetch_batch(timeout_s)) == READ_BATCH and self.read_ahead.waiting < limit:
                timeout_s = 0.0
            return came
        except RuntimeError:
            if self.failure is None:
                raise
            return None  # librdkafka's consumer is closed, because the fetch thread has failed
        finally:
            if taken:
                self._consumer_lock.release()

    def _release_lock(self) -> None:
        """Release the lock if an interrupted call has left it acquired."""
        try:
            while True:
                self._consumer_lock.release()
        except RuntimeError:
            return  # this thread does not hold the lock

    def close(self, timeout_s: float) -> bool:
        """End the thread and librdkafka's consumer. Returns True if both ended within `timeout_s` seconds."""
        self._release_lock()
        self._closing = True
        self._attention.set()
        if self._thread.ident is None:
            self._consumer.close()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _do(self, command: Command) -> None:
        self._commands.append(command)
        self._attention.set()

    # On the fetch thread.

    def _run(self) -> None:
        try:
            while True:
                # Cleared before the checks, so that a later command or `close` sets it again.
                self._attention.clear()
                if self._closing:
                    break
                self._asked = True
                with self._consumer_lock:
                    self._asked = False
                    self._obey()
                    if self.last_error is not None:
                        self._login.renew(self._consumer)
                        if self._tls_files.changed():
                            self._reopen()
                    self._ask_again()
                    self._serve()
                self._on_released()
                self._attention.wait(SERVE_S)
        except Exception as bug:
            # Errors of librdkafka's methods also end the thread: after a failed seek, a partition would stay unread.
            self._fail(bug)
        finally:
            self._consumer.close()

    def _fail(self, bug: Exception) -> None:
        # The first error is the cause; later errors may only result from the closed consumer.
        if self.failure is None:
            logger.error("reading ended", exc_info=bug)
            self.failure = InternalFailure(f"reading ended by {type(bug).__name__}: {bug}")
        self._on_released()

    def _open(self) -> confluent_kafka.Consumer:
        return open_consumer({**self._config, "error_cb": self._on_error})

    def _reopen(self) -> None:
        """Replace librdkafka's consumer, which reads certificates only once, and continue at the same offsets.

        This happens only if files have changed and librdkafka reports errors. A changed file alone is no reason,
        because Secrets are often renewed before the brokers' certificates. An error alone is no reason, because
        librdkafka recovers and keeps its prefetched data. The offsets come from `_next`, because librdkafka reports the
        old position after a seek until a record arrives.
        """
        # Unusable files count as used, too: they are tried again only after their next change.
        self._tls_files.used()
        try:
            fresh = self._open()
        except SettingsRefused as refused:  # the files are incomplete or wrong; the old consumer remains
            logger.warning("renewed TLS files cannot be used: %s", refused)
            return
        logger.info("TLS files have changed: librdkafka's consumer is replaced to use them")
        buffers = self._buffers.items()
        fresh.incremental_assign([at(part, *self.sought.record(buffer, self._next[part])) for part, buffer in buffers])
        fresh.pause([at(part) for part, buffer in buffers if buffer.on_hold])
        old, self._consumer = self._consumer, fresh
        old.close()
        self._errors.last = None
        for part, error in self._errors.partitions.items():
            error.void = error.void and self._buffers[part].on_hold

    def _ask_again(self) -> None:
        """Make librdkafka read failed partitions again, by a seek to their next offset. For each, librdkafka then
        returns a record, the partition's end, or the same error. Partitions paused in librdkafka are skipped, because
        librdkafka returns nothing for them."""
        if not self._errors.partitions:
            return
        for part in self._errors.take_due():
            if self._buffers[part].on_hold:
                continue
            place = self.sought.record(self._buffers[part], self._next[part])
            try:
                (read_again if self._errors.is_void(part) else seek)(self._consumer, part, *place)
                self._errors.partitions[part].void = False
            except KafkaException as refused:  # the partition remains stopped
                logger.info("partition %s-%d cannot be read again: %s", *part, refused.args[0].str())

    def _obey(self) -> None:
        if not self._commands:
            return
        while self._commands:
            self._commands.popleft()(self._consumer)
        topics = {topic for topic, _ in self._buffers}
        self._only_topic = next(iter(topics)) if len(topics) == 1 else None

    # With the lock held.

    def _serve(self) -> None:
        """Let librdkafka run its callbacks, unless a read has just done so. If the call returns a message, keep it."""
        if not self._served and self.read_ahead.waiting_bytes < READ_AHEAD_BYTES:
            message = self._consumer.poll(0.0)
            if message is not None:
                self._sort([message], counted=True)
        self._served = False

    def _fetch_batch(self, timeout_s: float) -> int:
        """Read at most `READ_BATCH` messages and return their number. The user's thread takes the messages immediately,
        so their bytes are not counted. The wait uses librdkafka's `poll`, which also runs callbacks. `consume` is
        called without a timeout: with a timeout, it would withhold available messages until a batch is full."""
        self._served = True
        first = self._consumer.poll(timeout_s)
        if first is None:
            return 0
        batch = [first, *self._consumer.consume(READ_BATCH - 1, 0)]
        self._sort(batch, counted=False)
        return len(batch)

    def _sort(self, batch: list[Message], *, counted: bool) -> None:
        """Put a batch into the read-ahead, and handle its errors."""
        if any(map(_error, batch)):
            self._sift(batch, counted=counted)
        elif batch:
            self._deliver(batch, counted=counted)

    def _deliver(self, batch: list[Message], *, counted: bool) -> None:
        """Cut a batch into runs of one partition each. Usually there is a single run, so this case must be fast."""
        partitions = list(map(_partition, batch))
        topic = self._only_topic
        if topic is not None and partitions.count(partitions[0]) == len(partitions):
            self._put((topic, partitions[0]), batch, counted=counted)
            return
        # Usually there is one topic. Grouping by number is three times as fast as grouping by topic and number.
        keys: list[Any] = partitions if topic is not None else list(zip(map(_topic, batch), partitions, strict=True))
        start = 0
        for key, same in groupby(keys):
            end = start + len(list(same))
            self._put((topic, key) if topic is not None else key, batch[start:end], counted=counted)
            start = end

    def _put(self, key: tuple[str, int], run: list[Message], *, counted: bool) -> None:
        buffer, errors = self._buffers.get(key), self._errors
        if buffer is None or (errors.partitions and errors.is_void(key)):
            return
        self.read_ahead.put(buffer, run, value_bytes(run) if counted else 0)
        self._next[key] = _offset(run[-1]) + 1, leader_epoch(run[-1])
        errors.last = None
        if errors.partitions:
            errors.readable(key)

    def _sift(self, batch: list[Message], *, counted: bool) -> None:
        """Separate the rare errors from a batch. An error may stop a partition, so messages before the error are
        delivered first."""
        good: list[Message] = []
        for message in batch:
            error = message.error()
            if error is None:
                good.append(message)
                continue
            if good:
                self._deliver(good, counted=counted)
                good = []
            self._judge(message, error)
        if good:
            self._deliver(good, counted=counted)

    def _judge(self, message: Message, error: KafkaError) -> None:
        number = message.partition()
        key = (message.topic() or "", -1 if number is None else number)
        buffer = self._buffers.get(key)
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            # Only logged: librdkafka never uses this coordinator, and the coordinator thread reports the refusal.
            logger.debug("data plane: %s", error.str())
        elif buffer is None:  # the partition is no longer assigned, so its end is ignored
            if error.code() != KafkaError._PARTITION_EOF:
                self._on_error(error)
        elif self._errors.is_void(key):
            return
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self.read_ahead.put_out_of_range(buffer, error.str())
        elif error.code() == KafkaError._PARTITION_EOF:
            end = _offset(message)
            self._errors.readable(key)
            # Usually there is no gap before the end. librdkafka itself drops end events that were queued before a seek.
            if end > self._next[key][0]:
                self.read_ahead.put_end(buffer, end)
                self._next[key] = end, self._next[key][1]
        else:  # the error is kept until the partition is read again (`_ask_again`); unreadable data stops the partition
            failure = failure_of(key, self._next[key][0], error)
            if isinstance(failure, DataUnreadable):
                try:
                    stand(self._consumer, key)
                except KafkaException as refused:
                    logger.info("partition %s-%d cannot be paused: %s", *key, refused.args[0].str())
            self._errors.put(key, self._next[key][0], failure)

    def _on_error(self, error: KafkaError) -> None:
        """Record an error without a partition; librdkafka retries on its own."""
        failure = DataPlaneFailed(f"{error.name()}: {error.str()}")
        self._errors.record_error(failure)
        logger.warning("data plane: %s", failure)
