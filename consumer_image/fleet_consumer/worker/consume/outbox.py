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
    """One record to be written, with the handle of its latest send, and by whom it was sent. One that is `withheld` is
    never sent, for the reason given."""

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
        """The error of the latest send."""
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

    def write(
        self,
        topic: str,
        *,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> Outgoing:
        """Send a record; returns at once, unless the producer's queue is full, which takes up to a second.

        `partition` None lets the key choose.
        """
        outgoing = Outgoing(topic, key, value, headers, partition)
        self.send(outgoing)
        return outgoing

    def write_all(self, produces: Sequence[Produce], listed: Collection[str]) -> list[Outgoing]:
        """Send the outputs of a record; all of them are withheld if one is for a topic that is not `listed`."""
        outgoing = [Outgoing(each.topic, each.key, each.value, each.headers) for each in produces]
        bad = next((each.topic for each in produces if each.topic not in listed), None)
        for each in outgoing:
            if bad is not None:
                each.withheld = ProduceFailed(bad, OUTPUT_NOT_LISTED, not_listed(bad, listed))
            self.send(each)
        return outgoing

    def send(self, outgoing: Outgoing) -> None:
        """Send a record, or send it again. An earlier copy may have been written after all: at least once."""
        if outgoing.withheld is not None:
            return
        broken = outgoing.error is not None and outgoing.error.reason in BROKEN_PRODUCER_REASONS
        # Many records report one broken producer: only the first of them replaces it.
        if broken and self._producer is not None and outgoing._sender is self._producer:
            self._producer.abandon()
            self._producer = None
        outgoing._sender = producer = self._ready()
        if producer is None:
            assert self._refusal is not None, "there is a producer, or the reason why not"
            outgoing._handle = _failed(outgoing.topic, self._refusal)
            return
        try:
            outgoing._handle = producer.send(
                outgoing.topic,
                key=outgoing.key,
                value=outgoing.value,
                headers=outgoing.headers,
                partition=outgoing.partition,
            )
        except Exception as error:
            outgoing._handle = _failed(outgoing.topic, error)

    def _ready(self) -> RecordProducer | None:
        """The producer; None, with the reason in `_refusal`, while it cannot be made."""
        if self._producer is None and self._refusal is None:
            try:
                self._producer = self._make_producer()
            except Exception as error:
                self._refusal = error
        return self._producer

    def wait(self, timeout_s: float) -> None:
        """Wait until the fate of every send is known, at most `timeout_s`; 0 only takes in what is known by now."""
        self._refusal = None
        if self._producer is not None:
            self._producer.flush(timeout_s)


def _failed(topic: str, error: Exception) -> SendHandle:
    """The handle of a record that librdkafka was never given."""
    handle = SendHandle(topic)
    handle.error, handle.done = ProduceFailed(topic, type(error).__name__, str(error)), True
    return handle
