"""Writes of a task: returned records to the sink's topic, failed ones to the failed topic; each is acknowledged.

Every duplicate that a repeated slice leaves can be found: the copies carry the Backfill's id and their origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.work import connection_of
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.policies import Policies
from fleet_consumer.librdkafka.producer import ProduceFailed, RecordProducer, SendHandle
from fleet_consumer.librdkafka.settings import PropertyNotAllowed, SettingsRefused, producer_config
from fleet_consumer.record import Produce, Record
from fleet_consumer.retry.failure import Failure
from fleet_consumer.retry.headers import (
    BACKFILL_ID,
    OUTPUT_INDEX,
    OUTPUT_TOPIC,
    FailedDelivery,
    HeaderList,
    failed_headers,
    first_story,
    foreign_headers,
    origin_headers,
    without_details,
)
from fleet_consumer.retry.routing import partition_of

ACK_TIMEOUT_S: Final = 150.0
"""Longer than librdkafka's own delivery timeout would need to be told; then the slice fails."""


class Writers:
    """The writers of one process, which keep their connections from one task to the next."""

    def __init__(self, config: BackfillConfig) -> None:
        self._config = config
        self._open: dict[str, TopicWriter] = {}

    def of(self, topic: str, message_max_bytes: int | None) -> TopicWriter:
        """The writer to this topic. Raises BackfillFailed."""
        known = self._open.get(topic)
        if known is None or known.message_max_bytes != message_max_bytes:
            known = self._open[topic] = TopicWriter(self._config, topic, message_max_bytes)
        return known


class TopicWriter:
    """Writes to one topic with acknowledgements from all replicas in sync. Raises BackfillFailed for a broken topic."""

    def __init__(self, config: BackfillConfig, topic: str, message_max_bytes: int | None) -> None:
        self._topic = topic
        self.message_max_bytes = message_max_bytes
        try:
            settings = producer_config(connection_of(config), config.worker.producer_properties)
            self._producer = RecordProducer(settings, message_max_bytes=message_max_bytes)
        except (PropertyNotAllowed, SettingsRefused) as error:
            raise BackfillFailed(error.reason, str(error), final=isinstance(error, PropertyNotAllowed)) from error

    def send(
        self, key: bytes | str | None, value: bytes | str | None, headers: HeaderList, partition: int | None = None
    ) -> SendHandle:
        return self._producer.send(self._topic, key=key, value=value, headers=headers, partition=partition)

    def settle(self, handles: Sequence[SendHandle]) -> list[ProduceFailed | None]:
        """Wait for these; the refusal of each record that the topic will never take, None for one that is written."""
        self._producer.flush(ACK_TIMEOUT_S)
        for handle in handles:
            if not handle.done:
                message = f"topic {self._topic!r} did not acknowledge within {ACK_TIMEOUT_S:g} s"
                raise BackfillFailed("NotAcknowledged", message, final=False)
            if handle.error is not None and not handle.error.refuses_record:
                raise BackfillFailed(handle.error.reason, str(handle.error), final=False)
        return [handle.error for handle in handles]


class SinkTopic:
    """The sink for returned records."""

    def __init__(self, config: BackfillConfig, writer: TopicWriter) -> None:
        self._config = config
        self._writer = writer
        self._open: list[tuple[Record, list[SendHandle]]] = []

    def send(self, record: Record, produces: Sequence[Produce]) -> None:
        """Begin to write a record's outputs."""
        self._open.append((record, [self._send(record, number, each) for number, each in enumerate(produces)]))

    def settle(self) -> list[tuple[Record, int, ProduceFailed]]:
        """Wait for all writes; the records of which an output was refused, with the number of those, in the order in
        which they were sent."""
        opened, self._open = self._open, []
        refusals = iter(self._writer.settle([handle for _, handles in opened for handle in handles]))
        refused = []
        for record, handles in opened:
            errors = [error for _, error in zip(handles, refusals, strict=False) if error is not None]
            if errors:
                refused.append((record, len(errors), errors[0]))
        return refused

    def _send(self, record: Record, number: int, produce: Produce) -> SendHandle:
        # Ours replace the handler's of these names: they must be true.
        own = foreign_headers(produce.headers)
        ours: dict[str, str | int | None] = {
            BACKFILL_ID: self._config.id,
            OUTPUT_INDEX: number,
            OUTPUT_TOPIC: produce.topic,
        }
        origin = origin_headers(first_story(record), ours)
        return self._writer.send(produce.key, produce.value, own + origin)


class FailedTopic:
    """The group's failed topic (dead letter queue, DLQ) for `onError: FailedTopic`."""

    def __init__(self, config: BackfillConfig, policies: Policies | None, writer: TopicWriter) -> None:
        self._config = config
        self._policies = policies
        self._writer = writer
        self._clock = SystemClock()
        self._open: list[tuple[Record, HeaderList, SendHandle]] = []

    def send(self, record: Record, failure: Failure) -> None:
        """Begin to write a failed record as it was read. Its reason is `manual`, as a person's order brought it there,
        unless it is one that has killed its process again and again."""
        poison = failure.reason is FailureReason.POISON
        delivery = FailedDelivery(
            record,
            failure if poison else replace(failure, reason=FailureReason.MANUAL),
            self._config.worker.group_id,
            int(self._clock.wall() * 1000),
            first_story(record),
        )
        policy = None if self._policies is None else self._policies.newest
        headers = [*failed_headers(delivery, policy), (BACKFILL_ID, self._config.id.encode())]
        self._open.append((record, headers, self._write(record, headers)))

    def settle(self) -> None:
        """Wait for all writes. Raises BackfillFailed if the topic does not take a record even without its details."""
        opened, self._open = self._open, []
        refusals = self._writer.settle([handle for _, _, handle in opened])
        again = [
            (record, self._write(record, without_details(headers)))
            for (record, headers, _), refusal in zip(opened, refusals, strict=True)
            if refusal is not None
        ]
        for (record, _), refusal in zip(again, self._writer.settle([handle for _, handle in again]), strict=True):
            if refusal is not None:
                place = f"partition {record.partition} offset {record.offset} of topic {self._config.topic!r}"
                message = f"the failed topic does not take the record at {place}: {refusal}; raise its size limit"
                raise BackfillFailed("FailedTopicRefused", message, final=True)

    def _write(self, record: Record, headers: HeaderList) -> SendHandle:
        partition = None
        if self._policies is not None:
            partition = partition_of(record.key, first_story(record).origin, self._policies.partitions)
        return self._writer.send(record.key, record.value, headers, partition)
