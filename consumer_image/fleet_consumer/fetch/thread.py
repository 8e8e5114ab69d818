"""The fetch thread: the only one that touches librdkafka's consumer.

confluent-kafka lets one thread at a time into a consumer, and the others wait without fairness; so everything that
others want done is a command in a queue. The thread reads whenever there is room, and stops reading when there is
none: librdkafka's `pause` would throw away what was prefetched (measured: 12 times the data, 11 times the time). Only
partitions that are held back for long, and keep being sent, are paused there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from fleet_consumer.clock import Clock
from fleet_consumer.fetch.buffer import PartitionBuffer, ReadAhead
from fleet_consumer.fetch.librdkafka import SettingsRefused
from fleet_consumer.group.errors import DataPlaneFailed, InternalFailure
from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)

READ_BATCH = 500
"""Messages per read: measured fastest between 100 and 1000."""
READ_AHEAD_BYTES = 32 * 1024 * 1024
"""Read-ahead in bytes of values; one more batch may come on top, bounded by `queued.max.messages.kbytes`."""
IDLE_POLL_S = 0.05
"""How long a read waits for data, and with it how late a command may be noticed: a read cannot be interrupted."""
TROUBLE_TOLD_S = 15.0
"""How long trouble counts after it was last told: librdkafka tries again, and tells again, every 10 s at the latest."""
FULL_WAIT_S = 1.0
"""How often librdkafka is served while there is no room."""

Command = Callable[[confluent_kafka.Consumer], None]

_error: Callable[[Message], Any] = Message.error
_topic: Callable[[Message], Any] = Message.topic
_partition: Callable[[Message], Any] = Message.partition


class FetchThread:
    """Reads the assigned partitions ahead into a `ReadAhead`. `on_data` is called, on this thread, when there is news.

    Constructing opens librdkafka's consumer, and raises SettingsRefused for values that it does not take; `start`
    starts the thread, `close` ends both. All other methods belong to one thread, the user's.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        name: str,
        read_ahead_records: int,
        on_data: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.read_ahead = ReadAhead()
        # Written by the fetch thread, read by any: why it ended, if it did by itself; and what it met last.
        self.failure: InternalFailure | None = None
        self._trouble: tuple[DataPlaneFailed, float] | None = None
        self._clock = clock
        try:
            self._consumer = confluent_kafka.Consumer({**config, "error_cb": self._on_error})
        except KafkaException as refused:
            raise SettingsRefused(f"the data plane's settings: {refused.args[0].str()}") from refused
        self._limit = read_ahead_records
        self._on_data = on_data
        self._commands: deque[Command] = deque()
        # Set by whoever gives the thread a reason to look up from waiting: a command, room, or the end.
        self._attention = threading.Event()
        self._waits_for_room = False
        self._closing = False
        # Written and read by the fetch thread only.
        self._buffers: dict[tuple[str, int], PartitionBuffer] = {}
        self._only_topic: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    @property
    def trouble(self) -> DataPlaneFailed | None:
        """What keeps records from coming, None when nothing does or nothing has been heard of it for a while.

        librdkafka tells of a connection that fails, never of one that works again; on a quiet topic no record tells
        either. It repeats itself while the trouble lasts, so trouble that is not told again is over. Any thread.
        """
        told = self._trouble
        return told[0] if told is not None and self._clock.monotonic() < told[1] else None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def assign(self, buffers: Mapping[TopicPartition, tuple[PartitionBuffer, int]]) -> None:
        """Read these too, each from its buffer's position; the number is the leader epoch of the offset, or -1."""
        added = {part: (buffer, buffer.position, epoch) for part, (buffer, epoch) in buffers.items()}

        def command(consumer: confluent_kafka.Consumer) -> None:
            consumer.incremental_assign([_at(part, offset, epoch) for part, (_, offset, epoch) in added.items()])
            # librdkafka remembers a pause across assignments.
            consumer.resume([_at(part) for part in added])
            self._buffers.update({part: buffer for part, (buffer, _, _) in added.items()})

        self._do(command)

    def unassign(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop reading these."""

        def command(consumer: confluent_kafka.Consumer) -> None:
            known = [part for part in partitions if self._buffers.pop(part, None) is not None]
            consumer.incremental_unassign([_at(part) for part in known])

        self._do(command)

    def seek(self, buffer: PartitionBuffer) -> None:
        """Go on at the position of `buffer`, which replaces the partition's former one."""
        part, offset = buffer.topic_partition, buffer.position

        def command(consumer: confluent_kafka.Consumer) -> None:
            if part in self._buffers:
                consumer.seek(_at(part, offset))
                self._buffers[part] = buffer

        self._do(command)

    def hold(self, partition: TopicPartition) -> None:
        """Stop fetching a partition that nobody will take for long."""
        self._do(lambda consumer: consumer.pause([_at(partition)]) if partition in self._buffers else None)

    def unhold(self, partition: TopicPartition) -> None:
        """Fetch it again."""
        self._do(lambda consumer: consumer.resume([_at(partition)]) if partition in self._buffers else None)

    def took(self) -> None:
        """Records were taken; there may be room again. Cheap when nobody waits for it."""
        if self._waits_for_room:
            self._attention.set()

    def close(self, timeout_s: float) -> bool:
        """End the thread and librdkafka's consumer; whether both ended in time."""
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

    # The thread itself.

    def _run(self) -> None:
        try:
            while True:
                # Cleared before looking: what is asked for after this look sets it again.
                self._attention.clear()
                if self._closing:
                    break
                self._obey()
                if not self._buffers:
                    self._serve()
                    self._attention.wait(FULL_WAIT_S)
                elif self._full():
                    self._wait_for_room()
                else:
                    self._read(IDLE_POLL_S)
        except Exception as bug:
            # Also what librdkafka refuses: a partition that was not assigned or not moved must not go unread silently.
            logger.exception("the fetch thread ended")
            self.failure = InternalFailure(f"the fetch thread ended by {type(bug).__name__}: {bug}")
            self._on_data()
        finally:
            self._consumer.close()

    def _obey(self) -> None:
        while self._commands:
            self._commands.popleft()(self._consumer)
        topics = {topic for topic, _ in self._buffers}
        self._only_topic = next(iter(topics)) if len(topics) == 1 else None

    def _full(self) -> bool:
        ahead = self.read_ahead
        return ahead.waiting >= self._limit or ahead.waiting_bytes >= READ_AHEAD_BYTES

    def _wait_for_room(self) -> None:
        # The flag goes up before the second look: a taker that did not see it has taken before that look.
        self._waits_for_room = True
        if self._full() and not self._attention.wait(FULL_WAIT_S):
            self._serve()
        self._waits_for_room = False

    def _serve(self) -> None:
        """Let librdkafka run its callbacks; a message that comes along is kept."""
        self._read(0.0)

    def _read(self, timeout_s: float) -> None:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        batch = [first, *self._consumer.consume(READ_BATCH - 1, 0)] if timeout_s else [first]
        if any(map(_error, batch)):
            batch = self._sift(batch)
        if batch:
            self._deliver(batch)
            self._on_data()

    def _deliver(self, batch: list[Message]) -> None:
        """Cut a batch into runs of one partition. Usually it is one, which must cost next to nothing."""
        partitions = list(map(_partition, batch))
        if self._only_topic is not None:
            keys: list[Any] = partitions
            if partitions.count(partitions[0]) == len(partitions):
                self._put((self._only_topic, partitions[0]), batch)
                return
        else:
            keys = list(zip(map(_topic, batch), partitions, strict=True))
        start = 0
        for end in range(1, len(batch) + 1):
            if end == len(batch) or keys[end] != keys[start]:
                self._put((batch[start].topic() or "", partitions[start]), batch[start:end])
                start = end

    def _put(self, key: tuple[str, int], run: list[Message]) -> None:
        buffer = self._buffers.get(key)
        if buffer is not None:
            self.read_ahead.put(buffer, run)
            self._trouble = None

    def _sift(self, batch: list[Message]) -> list[Message]:
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
                self._deliver(good)
                good = []
            self._judge(message, error)
        self._on_data()
        return good

    def _judge(self, message: Message, error: KafkaError) -> None:
        number = message.partition()
        key = (message.topic() or "", -1 if number is None else number)
        buffer = self._buffers.get(key)
        if error.code() == KafkaError._AUTO_OFFSET_RESET and buffer is not None:
            self.read_ahead.put_out_of_range(buffer, error.str())
        elif error.code() != KafkaError._PARTITION_EOF:
            self._on_error(error, f"partition {key[0]}-{key[1]}: " if buffer is not None else "")

    def _on_error(self, error: KafkaError, about: str = "") -> None:
        """librdkafka goes on trying by itself; what it met is kept to be shown for a while, or until records flow."""
        trouble = DataPlaneFailed(f"{about}{error.name()}: {error.str()}")
        self._trouble = trouble, self._clock.monotonic() + TROUBLE_TOLD_S
        logger.warning("data plane: %s", trouble)


def _at(partition: tuple[str, int], offset: int | None = None, epoch: int = -1) -> confluent_kafka.TopicPartition:
    topic, number = partition
    if offset is None:
        return confluent_kafka.TopicPartition(topic, number)
    if epoch < 0:
        return confluent_kafka.TopicPartition(topic, number, offset)
    return confluent_kafka.TopicPartition(topic, number, offset, leader_epoch=epoch)
