"""Writing records: librdkafka's idempotent producer behind a small asynchronous interface.

The worker writes many records at once and then waits for all of them, so a send returns a handle and `flush` waits.
Keys go to the partitions that the Java producer chooses (`murmur2_random`). Nothing here may retry on its own:
librdkafka does, within `delivery.timeout.ms`; after that the caller decides.

`group_metadata` is what a producer sends with the offsets of a transaction. librdkafka makes it for its own group
members only, so it is built here, in a format private to librdkafka. It is compared, once per process, with what the
linked librdkafka makes itself.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.managed_topics import HEADERS_BYTES_MAX
from fleet_consumer.group.errors import GroupMetadataUnknown
from fleet_consumer.librdkafka.added_authorities import AddedAuthorities
from fleet_consumer.librdkafka.settings import Login, SettingsRefused, resolved, tls_files
from fleet_consumer.record import Headers

logger = logging.getLogger(__name__)

_CLOCK: Final = SystemClock()

PURGE_S = 5.0
"""The longest wait for a replaced producer to report the records that it gives up; it takes next to none."""

DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    # Small enough that one poll's outputs leave at once, large enough to batch them.
    "linger.ms": 5,
    "compression.type": "lz4",
}
"""The defaults of every producer; a caller's settings win."""

DENSE: Final[Mapping[str, Any]] = {"compression.type": "zstd", "compression.level": 12, "batch.num.messages": 1}
"""For single records; about as small as anything that a source topic's own producers may have done."""

BATCH_BYTES_MAX: Final = 1_000_000
"""librdkafka's own limit of a batch."""

RECORD_BYTES_MAX: Final = 1_000_000_000
"""The most that librdkafka allows `message.max.bytes` to be."""

SENT_MAX: Final = 3
"""The number of sends of a record whose acknowledgement has no offset."""

DRAIN_S: Final = 0.5
"""The longest wait of a send for earlier ones, when the producer is to be replaced."""

OPEN_KEPT: Final = 1_000
"""The number of handles that are kept before those that are done are removed."""

ADVICE: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "; allow the principal Write on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "; allow the principal Write on the topic, or IdempotentWrite on the cluster"
    ),
    KafkaError._FATAL: (
        "; its log says why, mostly a missing right: allow the principal Write on the topic, or IdempotentWrite on "
        "the cluster"
    ),
}
"""Advice where librdkafka's own error text has none. Brokers give an idempotent producer its id when it may write to
any topic at all, and refuse it with the cluster's authorization error."""

CONSEQUENCES: Final = frozenset({"_FATAL", "_PURGE_QUEUE", "_PURGE_INFLIGHT"})
"""Reasons of single records after a fatal error of librdkafka; the reason to report is that error's."""

REFUSED_RECORD_REASONS: Final = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_RECORD"})
CAUSE_LOST: Final = "returned NULL without setting an exception"
"""Python's text for a call into librdkafka that failed by an exception which a callback has cleared."""


class ProduceFailed(Exception):
    """A record was not written, or that is unknown: `reason` is the broker's or librdkafka's name of the error."""

    def __init__(self, topic: str, reason: str, detail: str) -> None:
        super().__init__(f"could not write to topic {topic!r}: {reason}: {detail}")
        self.topic = topic
        self.reason = reason

    @property
    def refuses_record(self) -> bool:
        """True if the topic will never take this record, however often it is sent; any other failure may pass."""
        return self.reason in REFUSED_RECORD_REASONS


@dataclass(slots=True, eq=False)
class SendHandle:
    """One record on its way. `done` turns true once; `error` is then None (written) or why it was not."""

    topic: str
    done: bool = False
    error: ProduceFailed | None = None

    def _refused(self, error: KafkaError) -> None:
        self.failed(error.name(), error.str() + ADVICE.get(error.code(), ""))

    def failed(self, reason: str, detail: str) -> None:
        self.error, self.done = ProduceFailed(self.topic, reason, detail), True


class RecordProducer:
    """An idempotent producer with acks from all in-sync replicas. One thread may use it.

    `settings` are librdkafka's properties (`settings.connection_config` makes the connection's part).
    `message_max_bytes` is the `max.message.bytes` of the topics written to, None where it is unknown: no batch of
    several records gets larger. The size of a single record is left to the broker, which counts after compression,
    librdkafka before. A record that the broker refuses as too large is sent once more, alone and with the densest
    compression: its source may have compressed it better than the default does, or its batch was too large.
    Constructing raises SettingsRefused for what librdkafka does not take.
    """

    def __init__(self, settings: Mapping[str, Any], *, message_max_bytes: int | None = None) -> None:
        self._settings = {**DEFAULTS, **_limits(message_max_bytes), **settings, "error_cb": self._on_error}
        # Before the producer reads them: a renewal in between must not be missed.
        self._tls_files = tls_files(settings)
        self._added_authorities = AddedAuthorities(settings)
        self._login = Login(settings)
        try:
            self._producer = Producer(resolved(self._settings))
        except KafkaException as refused:
            raise SettingsRefused(f"the producer's settings: {refused.args[0].str()}") from refused
        # For records that are too large otherwise; made when the first one is.
        self._dense: Producer | None = None
        # librdkafka has reported an error since everything was last known to be written.
        self._had_error = False
        # One of these errors was about certificates.
        self._tls_failed = False
        # librdkafka has met a fatal error, after which it takes nothing more.
        self._dead = False
        # All handles that are not done, and some that are: callbacks get lost when a fatal error comes out.
        self._open: list[SendHandle] = []
        self._sort_out_at = OPEN_KEPT

    def send(
        self,
        topic: str,
        *,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> SendHandle:
        """Hand one record to librdkafka and return at once; text is written as UTF-8.

        `partition` None lets the key choose. One that the topic does not have is halved until it does, so that the same
        number leads to the same partition for everybody who sees as many. A refusal of librdkafka (too large, queue
        full for more than a moment) is reported through the handle like any other failure.
        """
        self._reopen_after_error()
        if self._added_authorities.due(_CLOCK.monotonic()) and not (self._in_flight() and self._flush(DRAIN_S)):
            self._reopen()
        handle = SendHandle(topic)
        if self._dead and not self._replaced(handle):
            return handle
        self._open.append(handle)
        if len(self._open) >= self._sort_out_at:
            self._sort_out()
            self._sort_out_at = max(OPEN_KEPT, 2 * len(self._open))
        self._produce(self._producer, handle, key, value, list(headers), partition)
        return handle

    def _produce(
        self,
        producer: Producer,
        handle: SendHandle,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: list[tuple[str, str | bytes | None]],
        partition: int | None,
        sent: int = 1,
    ) -> None:
        def again(error: KafkaError) -> bool:
            """Send it in another way, if there is one; returns whether there was."""
            if partition and error.code() == KafkaError._UNKNOWN_PARTITION:
                self._produce(producer, handle, key, value, headers, partition // 2)
            elif producer is not self._dense and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._produce(self._dense_producer(), handle, key, value, headers, partition)
            else:
                return False
            return True

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                if not again(error):
                    handle._refused(error)
            elif message.offset() is not None:
                handle.done = True
            elif sent < SENT_MAX:
                # This one may be lost: librdkafka takes a batch for written when a later one was. A broker that does
                # not know the producer accepts any sequence number (KIP-360), also behind a batch that it has just
                # refused because it did not lead the partition yet. Written twice is the safe side.
                self._produce(producer, handle, key, value, headers, partition, sent + 1)
            else:
                handle.failed("NoOffset", f"acknowledged {sent} times without an offset: nobody knows if it is there")

        extra: dict[str, Any] = {} if partition is None else {"partition": partition}
        for attempt in range(2):
            try:
                producer.produce(handle.topic, value, key, headers=headers, on_delivery=delivered, **extra)
                return
            except BufferError as full:
                if attempt:
                    handle.failed("QueueFull", str(full))
                elif not self._served(producer, 1.0):
                    return
            except KafkaException as refused:
                error: KafkaError = refused.args[0]
                # After a fatal error that is all it says; the error itself comes out of the next poll.
                reported = error.code() == KafkaError._FATAL and not self._served(producer, 0)
                if not reported and not again(error):
                    handle._refused(error)
                return

    def _served(self, producer: Producer, timeout_s: float) -> bool:
        """Let librdkafka run its callbacks; False after a fatal error, which every open handle has then."""
        try:
            producer.poll(timeout_s)
        except (KafkaException, SystemError) as failure:
            self._end(failure)
            return False
        return True

    def _dense_producer(self) -> Producer:
        if self._dense is None:
            self._dense = Producer(resolved({**self._settings, **DENSE}))
        return self._dense

    def flush(self, timeout_s: float) -> int:
        """Wait until every record sent so far is written or given up, at most `timeout_s`; the number left."""
        self._reopen_after_error()
        left = self._flush(timeout_s)
        if not left:
            if self._added_authorities.due(_CLOCK.monotonic()):
                self._reopen()
            self._had_error = False
            self._sort_out()
        return left

    def _flush(self, timeout_s: float) -> int:
        deadline = _CLOCK.monotonic() + timeout_s
        try:
            left = int(self._producer.flush(timeout_s))
            if self._dense is not None:
                # After the other: records that were too large for that one are in here by now.
                left += int(self._dense.flush(max(0.0, deadline - _CLOCK.monotonic())))
        except (KafkaException, SystemError) as failure:
            self._end(failure)
            return 0
        return left

    def abandon(self) -> None:
        """Give up what is in flight: the outcome of every send is known afterwards, and nothing may be sent."""
        _give_up(self._producer)
        if self._dense is not None:  # after the other: records that were too large for that one are in here by now
            _give_up(self._dense)
        self._sort_out()
        for handle in self._open:
            handle.failed("_FATAL", "librdkafka gave its producer up")
        self._open = []

    def _sort_out(self) -> None:
        self._open = [handle for handle in self._open if not handle.done]

    def _end(self, failure: KafkaException | SystemError) -> None:
        """End a producer that met a fatal error: nothing more is written until the next send makes a new one."""
        error = _fatal_error(failure)
        logger.warning("the producer ended: %s: %s", error.name(), error.str())
        self._dead = True
        opened = self._open
        self.abandon()
        for handle in opened:
            if handle.error is not None and handle.error.reason in CONSEQUENCES:
                handle._refused(error)

    def _replaced(self, handle: SendHandle) -> bool:
        """Replace a producer that met a fatal error; False when that failed, with the error in the handle."""
        # Before the producer reads them: a renewal in between must not be missed.
        self._tls_files.used()
        self._added_authorities.used()
        try:
            self._producer = Producer(resolved(self._settings))
        except KafkaException as refused:
            handle._refused(refused.args[0])
            return False
        self._dense, self._dead, self._had_error, self._tls_failed = None, False, False, False
        return True

    def _reopen_after_error(self) -> None:
        """Connect with credentials that were renewed, after an error: librdkafka reads TLS files only once.

        Records in flight may have been written, which only this producer can find out: they are waited for, unless
        the error was about certificates. Then they are given up (`_PURGE_QUEUE`, `_PURGE_INFLIGHT`), so that the
        caller sends them again now and not after the delivery timeout.
        """
        if not self._had_error:
            return
        self._login.renew(self._producer, *([] if self._dense is None else [self._dense]))
        if self._tls_files.changed() and (self._tls_failed or not self._in_flight()):
            self._reopen()

    def _reopen(self) -> None:
        """Replace the producer by one that reads the TLS files as they are now, and give up what is in flight."""
        if self._dead:  # the next send replaces it
            return
        # Also when they turn out to be unusable: they are tried again when they have changed again.
        self._tls_files.changed()
        self._tls_files.used()
        self._added_authorities.used()
        try:
            fresh = Producer(resolved(self._settings))
        except KafkaException as refused:  # renewed by halves, or wrongly; librdkafka goes on trying with the old
            logger.warning("renewed TLS files are of no use: %s", refused.args[0].str())
            return
        worn = [self._producer, *([] if self._dense is None else [self._dense])]
        self._producer, self._dense = fresh, None
        for each in worn:
            _give_up(each)
        self._had_error = self._tls_failed = False
        logger.info("TLS files have changed: the producer is replaced, to use them")

    def _in_flight(self) -> bool:
        return any(not handle.done for handle in self._open)

    def _on_error(self, error: KafkaError) -> None:
        self._had_error = True
        # A refused client certificate comes as _TRANSPORT, with OpenSSL's text.
        if error.code() == KafkaError._SSL or "SSL routines" in error.str():
            self._tls_failed = True


def _give_up(producer: Producer) -> None:
    producer.purge()
    try:
        producer.flush(PURGE_S)
    except (KafkaException, SystemError) as failure:
        logger.warning("the producer ended: %s", _fatal_error(failure).str())


def _fatal_error(failure: KafkaException | SystemError) -> KafkaError:
    """The fatal error of librdkafka, which it raises instead of calling back.

    Callbacks that run before make a SystemError of it, with its cause or without any: then only its occurrence is
    known. Any other SystemError is raised again.
    """
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, KafkaException):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        error: KafkaError = cause.args[0]
        return error
    if CAUSE_LOST in str(failure):
        return KafkaError(KafkaError._FATAL, "a fatal error of librdkafka's producer")
    raise failure


def _limits(message_max_bytes: int | None) -> dict[str, int]:
    """librdkafka's properties for topics with this `max.message.bytes`.

    A batch that is too large is refused as a whole, with all the small records in it; so batches end below the limit,
    and below that of any managed topic while it is unknown. librdkafka's own limit of a record, 1,000,000 bytes, is
    below the brokers' default.
    """
    known = HEADERS_BYTES_MAX if message_max_bytes is None else message_max_bytes
    return {"message.max.bytes": RECORD_BYTES_MAX, "batch.size": min(BATCH_BYTES_MAX, known)}


MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("=i")
_PROBE = "fleet-probe"


def group_metadata(group_id: str, generation: int, member_id: str, instance_id: str | None) -> bytes:
    """The argument of `Producer.send_offsets_to_transaction`. Raises GroupMetadataUnknown."""
    _check_format()
    return _built(group_id, generation, member_id, instance_id)


def _built(group_id: str, generation: int, member_id: str, instance_id: str | None) -> bytes:
    texts = [group_id, member_id]
    absent = b"\x01"
    if instance_id is not None:
        texts.append(instance_id)
        absent = b"\x00"
    group, member, *instance = [text.encode() + b"\x00" for text in texts]
    return MAGIC + _GENERATION.pack(generation) + group + member + absent + b"".join(instance)


@cache
def _check_format() -> None:
    """Compare with librdkafka's own, for a static and a dynamic consumer that never connect."""
    for instance in (None, "probe-instance"):
        extra = {} if instance is None else {"group.instance.id": instance}
        consumer = confluent_kafka.Consumer({"group.id": _PROBE, **extra})
        try:
            real = bytes(consumer.consumer_group_metadata())
        finally:
            consumer.close()
        if real != _built(_PROBE, -1, "", instance):
            raise GroupMetadataUnknown(
                f"librdkafka {confluent_kafka.libversion()[0]} writes group metadata as {real[:16]!r}…, here only "
                f"{MAGIC!r} is known; offsets cannot be part of a transaction with it"
            )
