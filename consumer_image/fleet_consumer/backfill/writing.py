"""Writes of a task: returned records to the sink's topic, failed ones to the failed topic; each is acknowledged.

Every duplicate that a repeated slice leaves can be found: the copies carry the Backfill's id and their origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fleet_consumer.backfill.errors import TaskFailed
from fleet_consumer.backfill.rows import Raw
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.policies import Policies
from fleet_consumer.librdkafka.producer import ProduceFailed, RecordProducer, SendHandle
from fleet_consumer.librdkafka.settings import connection_config
from fleet_consumer.record import Produce
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
from fleet_consumer.worker.config.settings import CredentialsUnreadable, connection_settings

ACK_TIMEOUT_S: Final = 150.0
"""Longer than librdkafka's own delivery timeout would need to be told; then the slice fails."""


class TopicWriter:
    """Writes to one topic with acknowledgements from all replicas in sync. Raises TaskFailed for a broken topic."""

    def __init__(self, config: BackfillConfig, topic: str, message_max_bytes: int | None) -> None:
        self._topic = topic
        try:
            connection = connection_settings(config.worker.brokers, f"fleet-backfill-{config.name}")
        except CredentialsUnreadable as error:
            raise TaskFailed(error.reason, str(error), final=False) from error
        self._producer = RecordProducer(connection_config(connection), message_max_bytes=message_max_bytes)

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
                raise TaskFailed("NotAcknowledged", message, final=False)
            if handle.error is not None and not handle.error.refuses_record:
                raise TaskFailed(handle.error.reason, str(handle.error), final=False)
        return [handle.error for handle in handles]


class SinkTopic:
    """The sink for returned records."""

    def __init__(self, config: BackfillConfig, topic: str, message_max_bytes: int | None) -> None:
        self._config = config
        self._writer = TopicWriter(config, topic, message_max_bytes)
        self._open: list[tuple[Raw, list[SendHandle]]] = []

    def send(self, raw: Raw, produces: Sequence[Produce]) -> None:
        """Begin to write a record's outputs."""
        self._open.append((raw, [self._send(raw, number, each) for number, each in enumerate(produces)]))

    def settle(self) -> list[tuple[Raw, int, ProduceFailed]]:
        """Wait for all writes; the records of which an output was refused, with the number of those."""
        opened, self._open = self._open, []
        refusals = iter(self._writer.settle([handle for _, handles in opened for handle in handles]))
        refused = []
        for raw, handles in opened:
            errors = [error for _, error in zip(handles, refusals, strict=False) if error is not None]
            if errors:
                refused.append((raw, len(errors), errors[0]))
        return refused

    def _send(self, raw: Raw, number: int, produce: Produce) -> SendHandle:
        # Ours replace the handler's of these names: they must be true.
        own = foreign_headers(produce.headers)
        ours: dict[str, str | int | None] = {
            BACKFILL_ID: self._config.id,
            OUTPUT_INDEX: number,
            OUTPUT_TOPIC: produce.topic,
        }
        origin = origin_headers(first_story(raw.record(self._config.topic)), ours)
        return self._writer.send(produce.key, produce.value, own + origin)


class FailedTopic:
    """The group's failed topic (dead letter queue, DLQ) for `onError: FailedTopic`."""

    def __init__(self, config: BackfillConfig, policies: Policies | None, message_max_bytes: int | None) -> None:
        self._config = config
        self._policies = policies
        known = message_max_bytes if policies is None else policies.max_message_bytes
        self._writer = TopicWriter(config, config.worker.failed_topic, known)
        self._clock = SystemClock()
        self._open: list[tuple[Raw, HeaderList, SendHandle]] = []

    def send(self, raw: Raw, failure: Failure) -> None:
        """Begin to write a failed record as it was read. Its reason is `manual`: a person's order brought it there."""
        record = raw.record(self._config.topic)
        delivery = FailedDelivery(
            record,
            replace(failure, reason=FailureReason.MANUAL),
            self._config.worker.group_id,
            int(self._clock.wall() * 1000),
            first_story(record),
        )
        policy = None if self._policies is None else self._policies.newest
        headers = [*failed_headers(delivery, policy), (BACKFILL_ID, self._config.id.encode())]
        self._open.append((raw, headers, self._write(raw, headers)))

    def settle(self) -> None:
        """Wait for all writes. Raises TaskFailed if the topic does not take a record even without its details."""
        opened, self._open = self._open, []
        refusals = self._writer.settle([handle for _, _, handle in opened])
        again = [
            (raw, self._write(raw, without_details(headers)))
            for (raw, headers, _), refusal in zip(opened, refusals, strict=True)
            if refusal is not None
        ]
        for (raw, _), refusal in zip(again, self._writer.settle([handle for _, handle in again]), strict=True):
            if refusal is not None:
                place = f"partition {raw.partition} offset {raw.offset} of topic {self._config.topic!r}"
                message = f"the failed topic does not take the record at {place}: {refusal}; raise its size limit"
                raise TaskFailed("FailedTopicRefused", message, final=True)

    def _write(self, raw: Raw, headers: HeaderList) -> SendHandle:
        partition = None
        if self._policies is not None:
            origin = first_story(raw.record(self._config.topic)).origin
            partition = partition_of(raw.key, origin, self._policies.partitions)
        return self._writer.send(raw.key, raw.value, headers, partition)
