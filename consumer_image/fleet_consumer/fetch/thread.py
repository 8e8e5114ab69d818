"""Reading from librdkafka, which lets one thread at a time into its consumer.

The thread in there holds the turn. The user's own thread reads records, inside `poll`: librdkafka has fetched them in
the background, and handing them over from another thread would cost more than reading them, twice so while a handler
keeps the interpreter busy. When nothing is there, `poll` waits inside librdkafka too, in short slices, because such a
wait cannot be interrupted and `poll` must hear of rebalances and wake-ups.

The fetch thread does the rest: it carries out commands, serves librdkafka's callbacks while the user's thread is away
with its records, and replaces connections that fail. It asks for the turn, and the user's thread makes way.

Back-pressure is not reading: librdkafka's `pause` would throw away what was prefetched (measured: 12 times the data,
11 times the time). Only partitions that are held back for long, and keep being sent, are paused there.
"""

from __future__ import annotations

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
"""Messages per read: measured fastest between 100 and 1000."""
READ_AHEAD_BYTES = 32 * 1024 * 1024
"""Bytes of values that may wait to be taken: while the user's thread is away, each serving of callbacks may bring a
record. `queued.max.messages.kbytes` bounds what librdkafka itself fetches ahead."""
SLICE_S = 0.02
"""The longest wait inside librdkafka, and so the delay of other news in a `poll` that waits for records. Half of it
would double the cost of an idle consumer (a few thousandths of a core)."""
SERVE_S = 1.0
"""The interval at which the fetch thread serves librdkafka."""

Command = Callable[[confluent_kafka.Consumer], None]

_offset: Callable[[Message], Any] = Message.offset
_error: Callable[[Message], Any] = Message.error
_topic: Callable[[Message], Any] = Message.topic
_partition: Callable[[Message], Any] = Message.partition


class FetchThread:
    """Reads the assigned partitions. `on_turn` is called, on the fetch thread, when it has given the turn back.

    Constructing opens librdkafka's consumer, and raises SettingsRefused for values that it does not take; `start`
    starts the thread, `close` ends both. All other methods belong to one thread, the user's.
    """

    def __init__(self, config: Mapping[str, Any], *, name: str, on_turn: Callable[[], None], clock: Clock) -> None:
        self.read_ahead = ReadAhead()
        self.sought = SoughtPlaces()
        # The error that ended reading; written by whoever reads, read by any thread.
        self.failure: InternalFailure | None = None
        self._errors = ReadErrors(clock)
        self._clock = clock
        self._config = config
        # Before the consumer reads them: a renewal in between must not be missed.
        self._tls_files = tls_files(config)
        self._login = Login(config)
        self._consumer = self._open()
        self._on_turn = on_turn
        self._commands: deque[Command] = deque()
        # Set to end the wait of the fetch thread: by a command or `close`.
        self._attention = threading.Event()
        self._closing = False
        # True while the fetch thread waits for the turn: a lock alone would go back to the user's thread every time.
        self._asked = False
        # Held while librdkafka's consumer is used. The user's thread tries it and never waits for it. Reentrant,
        # because it knows its owner: after a signal handler raised, even the taker may not know whether it took it.
        self._turn = threading.RLock()
        # The rest only with the turn in hand. librdkafka's callbacks were served since the thread last looked.
        self._served = False
        self._buffers: dict[tuple[str, int], PartitionBuffer] = {}
        # The offset after the last record from librdkafka, and its epoch: where another consumer would have to go on.
        self._next: dict[tuple[str, int], tuple[int, int]] = {}
        self._only_topic: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def last_error(self) -> DataPlaneFailed | None:
        """The error that keeps records from coming, None when nothing does (`ReadErrors.current`). Any thread."""
        return self._errors.current()

    @property
    def unreadable(self) -> dict[TopicPartition, PartitionError]:
        """The partitions that stand at data that cannot be read. Any thread."""
        return self._errors.unreadable

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def assign(self, buffers: Collection[PartitionBuffer]) -> None:
        """Read the partitions of these too, each from its buffer's position, reached in its leader epoch."""
        added = [(buffer, buffer.topic_partition, buffer.position, buffer.leader_epoch) for buffer in buffers]

        def command(consumer: confluent_kafka.Consumer) -> None:
            consumer.incremental_assign([at(part, offset, epoch) for _, part, offset, epoch in added])
            # librdkafka remembers a pause across assignments.
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
        """Go on at the position of `buffer`, which replaces the partition's former buffer."""
        part, offset, epoch = buffer.topic_partition, buffer.position, buffer.leader_epoch

        def command(consumer: confluent_kafka.Consumer) -> None:
            if part in self._buffers:
                if self._errors.is_void(part):
                    consumer.resume([at(part)])
                seek(consumer, part, offset, epoch)
                self._reads_from(part, buffer, offset, epoch)

        self._do(command)

    def hold(self, partition: TopicPartition) -> None:
        """Stop fetching a partition whose records will not be taken for long."""
        self._do(lambda consumer: consumer.pause([at(partition)]) if partition in self._buffers else None)

    def unhold(self, partition: TopicPartition) -> None:
        """Fetch a held partition again."""
        self._do(lambda consumer: consumer.resume([at(partition)]) if partition in self._buffers else None)

    def stands(self, buffer: PartitionBuffer, offset: int) -> None:
        """Keep that a partition stands at unreadable data of which librdkafka reports nothing, unless it has moved."""
        part = buffer.topic_partition

        def command(consumer: confluent_kafka.Consumer) -> None:
            if self._buffers.get(part) is buffer and self._next[part][0] == offset:
                self._errors.put(part, offset, silence_of(part, offset))

        self._do(command)

    def take(self, limit: int, on_out_of_range: Callable[[PartitionBuffer, OutOfRange], None]) -> Records:
        if limit and not self.read_ahead.waiting:
            self._read_in_turn(0.0, limit)
        return self.read_ahead.take(limit, on_out_of_range)

    def wait(self, timeout_s: float, news: threading.Event) -> None:
        """Wait until there may be something to take, or `news` is set, at most `timeout_s`. `on_turn` sets `news`."""
        deadline = self._clock.monotonic() + timeout_s
        while not news.is_set() and (left := deadline - self._clock.monotonic()) > 0:
            came = None if self.read_ahead.waiting else self._read_in_turn(min(left, SLICE_S), 1)
            if came is None:
                # Nothing is assigned, or the thread wants the turn: it calls `on_turn` when that has changed.
                news.wait(left)
                return
            if self.read_ahead.pending:
                return

    def start_over(self, buffers: Collection[PartitionBuffer]) -> None:
        """Drop all that was read, and read from the positions of `buffers`, which replace all former ones.

        For a user's thread whose reading was interrupted: messages from librdkafka are lost, of unknown partitions.
        """
        self._leave_turn()
        # Also its counts: the interruption may have come between what they count and the counting.
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

    def _read_in_turn(self, timeout_s: float, limit: int) -> int | None:
        """Read until `limit` records wait or librdkafka has no more; the number that came last, None without a turn.

        Signal handlers run in here, on the main thread, and may raise anything: that goes to the user, and ends neither
        the reading nor the turns.
        """
        taken = False
        try:
            # Not while the thread wants the turn: a command may void what is read now.
            if self._asked or self._commands or not self._buffers:
                return None
            taken = self._turn.acquire(blocking=False)
            if not taken:
                return None
            while (came := self._read(timeout_s)) == READ_BATCH and self.read_ahead.waiting < limit:
                timeout_s = 0.0
            return came
        except RuntimeError:
            if self.failure is None:
                raise
            return None  # librdkafka's consumer is closed, because the fetch thread has failed: that is the cause
        finally:
            if taken:
                self._turn.release()

    def _leave_turn(self) -> None:
        """Give the turn back if it is still held, because taking it or giving it back was interrupted."""
        try:
            while True:
                self._turn.release()
        except RuntimeError:
            return  # it is not held by this thread

    def close(self, timeout_s: float) -> bool:
        """End the thread and librdkafka's consumer; whether both ended in time."""
        self._leave_turn()
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
                # Cleared before looking: what is asked for after this look sets it again.
                self._attention.clear()
                if self._closing:
                    break
                self._asked = True
                with self._turn:
                    self._asked = False
                    self._obey()
                    if self.last_error is not None:
                        self._login.renew(self._consumer)
                        if self._tls_files.changed():
                            self._reopen()
                    self._ask_again()
                    self._serve()
                self._on_turn()
                self._attention.wait(SERVE_S)
        except Exception as bug:
            # Also what librdkafka refuses: a partition that was not assigned or not moved must not go unread silently.
            self._fail(bug)
        finally:
            self._consumer.close()

    def _fail(self, bug: Exception) -> None:
        # The first is the cause; what the other thread meets in a closed consumer is not.
        if self.failure is None:
            logger.error("reading ended", exc_info=bug)
            self.failure = InternalFailure(f"reading ended by {type(bug).__name__}: {bug}")
        self._on_turn()

    def _open(self) -> confluent_kafka.Consumer:
        return open_consumer({**self._config, "error_cb": self._on_error})

    def _reopen(self) -> None:
        """Replace librdkafka's consumer, which cannot read certificates again, and go on where the old one stood.

        Only after an error: working connections stay good with the certificates that they began with.
        """
        # Also when they turn out to be unusable: they are tried again when they have changed again.
        self._tls_files.used()
        try:
            fresh = self._open()
        except SettingsRefused as refused:  # renewed by halves, or wrongly; what works goes on
            logger.warning("renewed TLS files are of no use: %s", refused)
            return
        logger.info("TLS files have changed: the data plane is replaced, to use them")
        reading = self._buffers.items()
        fresh.incremental_assign([at(part, *self.sought.note(buffer, self._next[part])) for part, buffer in reading])
        fresh.pause([at(part) for part, buffer in reading if buffer.on_hold])
        worn, self._consumer = self._consumer, fresh
        worn.close()
        self._errors.last = None
        for part, error in self._errors.partitions.items():
            error.void = error.void and self._buffers[part].on_hold

    def _ask_again(self) -> None:
        """Make librdkafka read failed partitions again: nothing is lost by seeking to where reading stands.

        Each then gives a record, its end, or the error again; one that is held back gives nothing.
        """
        if not self._errors.partitions:
            return
        for part in self._errors.take_due():
            if self._buffers[part].on_hold:
                continue
            place = self.sought.note(self._buffers[part], self._next[part])
            try:
                (read_again if self._errors.is_void(part) else seek)(self._consumer, part, *place)
                self._errors.partitions[part].void = False
            except KafkaException as refused:  # it stands still as it did
                logger.info("partition %s-%d cannot be asked for again: %s", *part, refused.args[0].str())

    def _obey(self) -> None:
        if not self._commands:
            return
        while self._commands:
            self._commands.popleft()(self._consumer)
        topics = {topic for topic, _ in self._buffers}
        self._only_topic = next(iter(topics)) if len(topics) == 1 else None

    # With the turn in hand.

    def _serve(self) -> None:
        """Let librdkafka run its callbacks, unless a read just did; a message that comes along is kept."""
        if not self._served and self.read_ahead.waiting_bytes < READ_AHEAD_BYTES:
            message = self._consumer.poll(0.0)
            if message is not None:
                self._sort([message], counted=True)
        self._served = False

    def _read(self, timeout_s: float) -> int:
        """Read what is there, at most `READ_BATCH`; returns the number of messages. They are taken at once, uncounted.

        The poll runs librdkafka's callbacks, too. Further messages are only taken without waiting: while librdkafka
        waits to complete a batch, it keeps the messages that are there.
        """
        self._served = True
        first = self._consumer.poll(timeout_s)
        if first is None:
            return 0
        batch = [first, *self._consumer.consume(READ_BATCH - 1, 0)]
        self._sort(batch, counted=False)
        return len(batch)

    def _sort(self, batch: list[Message], *, counted: bool) -> None:
        """Put a batch into the read-ahead, errors apart."""
        if any(map(_error, batch)):
            self._sift(batch, counted=counted)
        elif batch:
            self._deliver(batch, counted=counted)

    def _deliver(self, batch: list[Message], *, counted: bool) -> None:
        """Cut a batch into runs of one partition. Usually it is one, which must cost next to nothing."""
        partitions = list(map(_partition, batch))
        topic = self._only_topic
        if topic is not None and partitions.count(partitions[0]) == len(partitions):
            self._put((topic, partitions[0]), batch, counted=counted)
            return
        # One topic is the usual case, and grouping numbers is three times as fast as grouping pairs.
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
        """Take the errors out of a batch. Rare, so it may be slow.

        Data that came before an error is delivered before it, since an error may end what its partition can give.
        """
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
            # librdkafka looks for the coordinator of a group that it never uses; ours is asked, and refused, elsewhere.
            logger.debug("data plane: %s", error.str())
        elif buffer is None:
            # Whatever librdkafka still has to say about a partition that is gone is over.
            if error.code() != KafkaError._PARTITION_EOF:
                self._on_error(error)
        elif self._errors.is_void(key):
            return
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self.read_ahead.put_out_of_range(buffer, error.str())
        elif error.code() == KafkaError._PARTITION_EOF:
            end = _offset(message)
            self._errors.readable(key)
            # Usually it ends right behind its last record. An end from before a seek never comes: librdkafka drops it.
            if end > self._next[key][0]:
                self.read_ahead.put_end(buffer, end)
                self._next[key] = end, self._next[key][1]
        else:  # kept until the partition is read again (`_ask_again`); at unreadable data it stands still
            failure = failure_of(key, self._next[key][0], error)
            if isinstance(failure, DataUnreadable):
                try:
                    stand(self._consumer, key)
                except KafkaException as refused:
                    logger.info("partition %s-%d cannot be paused: %s", *key, refused.args[0].str())
            self._errors.put(key, self._next[key][0], failure)

    def _on_error(self, error: KafkaError) -> None:
        """Keep an error for a while, or until records flow; librdkafka goes on trying by itself."""
        failure = DataPlaneFailed(f"{error.name()}: {error.str()}")
        self._errors.note(failure)
        logger.warning("data plane: %s", failure)
