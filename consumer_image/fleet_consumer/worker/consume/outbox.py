"""Everything a worker writes: handlers' outputs and failed records, each known until it is acknowledged.

A write that fails is kept and sent again on request; giving up is not one of the choices here, because the offset of
its record may not be committed before it is written. Used by the consume loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fleet_consumer.handlers.performing import not_listed
from fleet_consumer.librdkafka.producer import ProduceFailed, RecordProducer, SendHandle
from fleet_consumer.record import Headers, Produce

BROKEN_PRODUCER_REASONS: Final = frozenset({"_FATAL", "_FENCED"})
"""After these an idempotent producer of librdkafka refuses all further work and has to be replaced."""

OUTPUT_NOT_LISTED: Final = "OutputNotListed"
"""The topic is not in `handler.outputs`: nothing is sent before the deployment is corrected."""

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
"""Condition reasons for librdkafka's error names; ProduceFailed for others."""

WRITE_BYTES: Final = 1024
"""Rough memory of a write besides its bytes: so a bound in bytes bounds the number of writes as well."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """One record to be written, with the handle of its latest send, and by whom it was sent. `partition` None lets the
    key choose. One that is `withheld` is never sent, for the reason given."""

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
        """True once the latest send is acknowledged or failed."""
        return self.withheld is not None or (self._handle is not None and self._handle.done)

    @property
    def error(self) -> ProduceFailed | None:
        return self.withheld if self._handle is None else self._handle.error

    @property
    def size(self) -> int:
        """Rough size in memory, in bytes."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return WRITE_BYTES + len(self.key or b"") + len(self.value or b"") + headers

    @property
    def refused(self) -> bool:
        """True if the topic will never take this record."""
        return self.error is not None and self.error.refuses_record


class Outbox:
    """Sends records through a producer that is made on first use, and again when librdkafka gives one up.

    A producer that cannot be made, or raises, fails the write: renewed certificates or credentials that are of no use
    are an error of the deployment, and never one of the record that is to be written.
    """

    def __init__(self, make_producer: Callable[[], RecordProducer]) -> None:
        self._make_producer = make_producer
        self._producer: RecordProducer | None = None
        # Why there is no producer. It is tried again after the next look at the writes, not for each of a batch's.
        self._refusal: Exception | None = None

    def write_all(self, produces: Sequence[Produce], listed: Collection[str]) -> list[Outgoing]:
        """Send the outputs of a record; all of them are withheld if one is for a topic that is not `listed`."""
        bad = next((each.topic for each in produces if each.topic not in listed), None)
        withheld = None if bad is None else ProduceFailed(bad, OUTPUT_NOT_LISTED, not_listed(bad, listed))
        return [
            self.send(Outgoing(each.topic, each.key, each.value, each.headers, withheld=withheld)) for each in produces
        ]

    def send(self, outgoing: Outgoing) -> Outgoing:
        """Send a record, or send it again. An earlier copy may have been written after all: at least once.

        Returns at once, unless the producer's queue is full, which takes up to a second.
        """
        if outgoing.withheld is not None:
            return outgoing
        broken = outgoing.error is not None and outgoing.error.reason in BROKEN_PRODUCER_REASONS
        # Many records report one broken producer: only the first of them replaces it.
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
            outgoing._handle.failed(type(error).__name__, str(error))
        return outgoing

    def _ready(self) -> RecordProducer:
        """The producer; raises `_refusal` while it cannot be made."""
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
        """Wait until the fate of every send is known, at most `timeout_s`; 0 only takes in what is known by now."""
        self._refusal = None
        if self._producer is not None:
            self._producer.flush(timeout_s)
