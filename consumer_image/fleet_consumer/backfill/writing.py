"""Writes of a task, each awaited until acknowledged: returned records to the sink's topic, failed records to the failed
topic.

The headers of written records name the Backfill's id and the record's origin, so duplicates of a repeated slice can be
found.
"""

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
    first_history,
    foreign_headers,
    origin_headers,
    without_details,
)
from fleet_consumer.retry.routing import partition_of

ACK_TIMEOUT_S: Final = 150.0
"""Maximum wait for acknowledgements, after which the slice fails; longer than librdkafka's delivery timeout."""


class Writers:
    """The topic writers of one process; all its tasks share their connections."""

    def __init__(self, config: BackfillConfig) -> None:
        self._config = config
        self._open: dict[str, TopicWriter] = {}

    def writer_to(self, topic: str, message_max_bytes: int | None) -> "TopicWriter":
        known = self._open.get(topic)
        if known is None or known.message_max_bytes != message_max_bytes:
            known = self._open[topic] = TopicWriter(self._config, topic, message_max_bytes)
        return known


class TopicWriter:
    """Writes to one topic with `acks=all`. Methods raise BackfillFailed."""

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

    def await_handles(self, handles: Sequence[SendHandle]) -> list[ProduceFailed | None]:
        """Wait for these writes. Returns one result per write: None, or the error if the broker refused the record."""
        self._producer.flush(ACK_TIMEOUT_S)
        for handle in handles:
            if not handle.done:
                message = f"topic {self._topic!r} did not acknowledge a record within {ACK_TIMEOUT_S:g} s"
                raise BackfillFailed("NotAcknowledged", message, final=False)
            if handle.error is not None and not handle.error.refuses_record:
                raise BackfillFailed(handle.error.reason, str(handle.error), final=False)
        return [handle.error for handle in handles]


class SinkTopic:
    def __init__(self, config: BackfillConfig, writer: TopicWriter) -> None:
        self._config = config
        self._writer = writer
        self._open: list[tuple[Record, list[SendHandle]]] = []

    def send(self, record: Record, produces: Sequence[Produce]) -> None:
        self._open.append((record, [self._send(record, number, each) for number, each in enumerate(produces)]))

    def await_writes(self) -> list[tuple[Record, int, ProduceFailed]]:
        """Wait for all writes. Returns a tuple for each input record with refused outputs: record, number of refusals,
        first error."""
        opened, self._open = self._open, []
        refusals = iter(self._writer.await_handles([handle for _, handles in opened for handle in handles]))
        refused = []
        for record, handles in opened:
            errors = [error for _, error in zip(handles, refusals, strict=False) if error is not None]
            if errors:
                refused.append((record, len(errors), errors[0]))
        return refused

    def _send(self, record: Record, number: int, produce: Produce) -> SendHandle:
        # Our headers replace the handler's headers with the same names, because the handler's may be wrong.
        own = foreign_headers(produce.headers)
        ours: dict[str, str | int | None] = {
            BACKFILL_ID: self._config.id,
            OUTPUT_INDEX: number,
            OUTPUT_TOPIC: produce.topic,
        }
        origin = origin_headers(first_history(record), ours)
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
        """Start the write of a failed record; `record` is as read, unchanged by the handler. The failure reason in its
        headers is `poison` if the record repeatedly killed the handler's process, otherwise `manual`, because a person
        started the Backfill."""
        poison = failure.reason is FailureReason.POISON
        delivery = FailedDelivery(
            record,
            failure if poison else replace(failure, reason=FailureReason.MANUAL),
            self._config.worker.group_id,
            int(self._clock.wall() * 1000),
            first_history(record),
        )
        policy = None if self._policies is None else self._policies.newest
        headers = [*failed_headers(delivery, policy), (BACKFILL_ID, self._config.id.encode())]
        self._open.append((record, headers, self._write(record, headers)))

    def await_writes(self) -> None:
        """Wait for all writes. Resends refused records without failure details. Raises BackfillFailed if a resend is
        refused, too."""
        opened, self._open = self._open, []
        refusals = self._writer.await_handles([handle for _, _, handle in opened])
        again = [
            (record, self._write(record, without_details(headers)))
            for (record, headers, _), refusal in zip(opened, refusals, strict=True)
            if refusal is not None
        ]
        for (record, _), refusal in zip(
            again, self._writer.await_handles([handle for _, handle in again]), strict=True
        ):
            if refusal is not None:
                place = f"partition {record.partition} offset {record.offset} of topic {self._config.topic!r}"
                message = f"the failed topic refuses the record at {place}: {refusal}; raise the topic's size limit"
                raise BackfillFailed("FailedTopicRefused", message, final=True)

    def _write(self, record: Record, headers: HeaderList) -> SendHandle:
        partition = None
        if self._policies is not None:
            partition = partition_of(record.key, first_history(record).origin, self._policies.partitions)
        return self._writer.send(record.key, record.value, headers, partition)
