"""Paused partitions, and the bound on the memory of what is held back for them.

Pauses may last for hours, and there may be thousands, so both one partition and all together are bounded.
"""

from __future__ import annotations

from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.fetch.buffer import PartitionBuffer
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.record import TopicPartition

Buffers = dict[TopicPartition, PartitionBuffer | None]
"""The owned partitions of one consumer; None until the starting position is known."""


class PausedPartitions:
    """The paused ones among `buffers`. Belongs to the user's thread."""

    def __init__(self, fetch: FetchThread, buffers: Buffers, settings: ConsumerSettings) -> None:
        self._fetch = fetch
        self._buffers = buffers
        self._records_max = settings.max_poll_records
        self._bytes_max = settings.paused_bytes_max
        self.partitions: set[TopicPartition] = set()

    def pause(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Hand out nothing of these."""
        self.partitions.update(partitions)
        for part in partitions:
            buffer = self._buffers[part]
            if buffer is not None:
                buffer.paused = True

    def resume(self, partitions: tuple[TopicPartition, ...]) -> None:
        """End a pause; what was read ahead before it comes out first."""
        self.partitions.difference_update(partitions)
        for part in partitions:
            buffer = self._buffers[part]
            if buffer is not None and buffer.paused:
                buffer.paused = False
                self._fetch.read_ahead.release(buffer)
                if buffer.dropped:
                    buffer.dropped = False
                    self._fetch.seek(buffer)
                if buffer.on_hold:
                    buffer.on_hold = False
                    self._fetch.unhold(part)

    def bound_memory(self) -> None:
        """Fetch no more of paused partitions that hold their share; hold no more in all than the budget.

        Every paused partition has an equal share, so none takes the room of the others. A fetch brings many records at
        a time; what exceeds the budget is dropped where most is held. It is fetched again when its pause ends, and then
        handed out without being held, however large it is.
        """
        held_back = self._fetch.read_ahead.held_back
        share = self._bytes_max // max(1, len(self.partitions))
        for each in held_back:
            enough = each.held_records >= self._records_max or each.held_bytes >= share
            if each.current and enough:
                self._hold(each)
        held_back.clear()
        holding = [buffer for part in self.partitions if (buffer := self._buffers.get(part)) and buffer.held_bytes]
        excess = sum(buffer.held_bytes for buffer in holding) - self._bytes_max
        if excess > 0:
            for buffer in sorted(holding, key=lambda each: each.held_bytes, reverse=True):
                excess -= buffer.held_bytes
                self._drop(buffer)
                if excess <= 0:
                    break

    def _hold(self, buffer: PartitionBuffer) -> None:
        if not buffer.on_hold:
            buffer.on_hold = True
            self._fetch.hold(buffer.topic_partition)

    def _drop(self, former: PartitionBuffer) -> None:
        """Drop the held records of a partition until the pause ends; what was fetched behind them is void, too."""
        self._hold(former)
        buffer = PartitionBuffer(former.topic_partition, former.position, former.leader_epoch, paused=True)
        buffer.on_hold = buffer.dropped = True
        # In this order: an interruption in between must find a buffer that is current (`Positions.start_over`).
        self._buffers[former.topic_partition] = buffer
        former.current = False
        # The fetch thread knows the former one until the partition is sought.
        former.held.clear()
