"""A worker's writes: outputs of handlers, and copies of failed records.

A failed write is kept until `writing` sends it again. No write is ever abandoned, because the offset of its record must
not be committed before the write is acknowledged. Used by the consume loop's thread only.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fleet_consumer.handlers.performing import not_listed
from fleet_consumer.librdkafka.producer import ProduceFailed, RecordProducer, SendHandle
from fleet_consumer.record import Headers, Produce

BROKEN_PRODUCER_REASONS: Final = frozenset({"_FATAL", "_FENCED"})
"""librdkafka errors after which an idempotent producer refuses all further records and must be replaced."""

OUTPUT_NOT_LISTED: Final = "OutputNotListed"
"""Error: the topic is not in `handler.outputs`. The record's outputs are withheld until the handler or the list is
corrected."""

HOLD_REASONS: Final = {
    OUTPUT_NOT_LISTED: OUTPUT_NOT_LISTED,
    "_UNKNOWN_TOPIC": "TopicNotFound",
    "UNKNOWN_TOPIC_OR_PART": "TopicNotFound",
    "TOPIC_AUTHORIZATION_FAILED": "AuthorizationFailed",
    "CLUSTER_AUTHORIZATION_FAILED": "AuthorizationFailed",
    "_AUTHENTICATION": "AuthenticationFailed",
    "SASL_AUTHENTICATION_FAILED": "AuthenticationFailed",
    "_MSG_TIMED_OUT": "BrokerUnreachable",
    "_ALL_BROKERS_DOWN": "BrokerUnreachable",
    "_TRANSPORT": "BrokerUnreachable",
}
"""Condition reasons by librdkafka's error names. All other errors have the reason ProduceFailed."""

WRITE_BYTES: Final = 1024
"""Approximate overhead of a write in bytes. Because of this overhead, a limit in bytes also limits the number of small
writes."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """One record to be written, with the handle and the producer of the latest attempt to send it.

    If `partition` is None, the producer chooses the partition by the key. If `withheld` is an error, the record is
    never sent, because of this error.
    """

    topic: str
    key: bytes | str | None
    value: bytes | str | None
    headers: Headers
    partition: int | None = None
    withheld: ProduceFailed | None = None
    _handle: SendHandle | None = None
    _sender: RecordProducer | None = None

    @property
    def done(self) -> bool:
        """True once the latest attempt was acknowledged or has failed."""
        return self.withheld is not None or (self._handle is not None and self._handle.done)

    @property
    def error(self) -> ProduceFailed | None:
        return self.withheld if self._handle is None else self._handle.error

    @property
    def size(self) -> int:
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return WRITE_BYTES + len(self.key or b"") + len(self.value or b"") + headers

    @property
    def refused(self) -> bool:
        """True if the topic refuses this record permanently, for example because of its size."""
        return self.error is not None and self.error.refuses_record


class Outbox:
    """Sends records with a producer that is created on first use and replaced after a fatal librdkafka error.

    If the producer cannot be created or raises an error, the write fails and is repeated. The consumed record does not
    fail, because it is not the cause. For example, renewed certificates or credentials may be unusable.
    """

    def __init__(self, make_producer: Callable[[], RecordProducer]) -> None:
        self._make_producer = make_producer
        self._producer: RecordProducer | None = None
        # The error that prevented the producer's creation. The producer is created again after the next `wait`, not at
        # the next write.
        self._refusal: Exception | None = None

    def write_all(self, produces: Sequence[Produce], listed: Collection[str]) -> list[Outgoing]:
        """Send the outputs of a record. All of them are withheld if the topic of any output is not in `listed`."""
        bad = next((each.topic for each in produces if each.topic not in listed), None)
        withheld = None if bad is None else ProduceFailed(bad, OUTPUT_NOT_LISTED, not_listed(bad, listed))
        return [
            self.send(Outgoing(each.topic, each.key, each.value, each.headers, withheld=withheld)) for each in produces
        ]

    def send(self, outgoing: Outgoing) -> Outgoing:
        """Send a record for the first time or again. Returns immediately, or within a second if the producer's queue is
        full.

        A repeated record may be written twice, because the earlier write may have succeeded without an acknowledgement.
        """
        if outgoing.withheld is not None:
            return outgoing
        broken = outgoing.error is not None and outgoing.error.reason in BROKEN_PRODUCER_REASONS
        # Many failed writes may have the same broken producer. Only the first of them replaces it.
        if broken and self._producer is not None and outgoing._sender is self._producer:
            self._producer.abandon()
            self._producer = None
        outgoing._sender = None
        try:
            outgoing._sender = self._ready()
            outgoing._handle = outgoing._sender.send(
                outgoing.topic,
                key=outgoing.key,
                value=outgoing.value,
                headers=outgoing.headers,
                partition=outgoing.partition,
            )
        except Exception as error:
            outgoing._handle = SendHandle(outgoing.topic)
            outgoing._handle.fail(type(error).__name__, str(error))
        return outgoing

    def _ready(self) -> RecordProducer:
        """Return the producer, and create it if necessary. Raises the error that prevented the creation."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if self._producer is None:
            try:
                self._producer = self._make_producer()
            except Exception as error:
                self._refusal = error
                raise
        return self._producer

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until all sent records are acknowledged or have failed. With 0, only process
        the results that have arrived."""
        self._refusal = None
        if self._producer is not None:
            self._producer.flush(timeout_s)
