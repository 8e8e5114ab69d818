"""Writes records with librdkafka's idempotent producer, behind a small asynchronous interface.

The worker writes many records and then waits for all of them, so a send returns a handle and `flush` waits. Records
with the same key go to the same partition as with the Java producer (`murmur2_random`). librdkafka retries within
`delivery.timeout.ms`; afterwards the caller decides.

`group_metadata` builds the group metadata that a producer sends with the offsets of a transaction. librdkafka makes
group metadata only for its own group members, so this module builds the metadata in librdkafka's private format. Once
per process, the built format is checked against the linked librdkafka.

Decisions: docs/decisions/0031-acknowledged-without-an-offset.md, docs/decisions/0035-credentials-of-others.md.
"""

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
"""Maximum seconds to wait until a replaced producer has reported the records that it gives up; usually it reports them
immediately."""

DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    # Long enough to batch the outputs of one poll, but short enough not to delay them noticeably.
    "linger.ms": 5,
    "compression.type": "lz4",
}
"""Defaults of every producer; a caller's settings take precedence."""

DENSE: Final[Mapping[str, Any]] = {"compression.type": "zstd", "compression.level": 12, "batch.num.messages": 1}
"""Settings of the producer for single large records. Their compression is about as strong as that of any producer of a
source topic."""

BATCH_BYTES_MAX: Final = 1_000_000
"""librdkafka's default limit of a batch, in bytes."""

RECORD_BYTES_MAX: Final = 1_000_000_000
"""Largest value in bytes that librdkafka allows for `message.max.bytes`."""

SENT_MAX: Final = 3
"""Maximum number of times that a record is sent if it is acknowledged without an offset.

When a broker acknowledges a batch, librdkafka's idempotent producer also counts earlier batches as acknowledged
(`IMPLICITACK`), even if the broker refused them. Such an implicit acknowledgement has no offset.
"""

DRAIN_S: Final = 0.5
"""Maximum seconds that a send waits for earlier sends before the producer is replaced."""

OPEN_KEPT: Final = 1_000
"""If more handles than this are in memory, the finished handles are removed."""

ADVICE: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "; allow the principal Write on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "; allow the principal Write on the topic, or IdempotentWrite on the cluster"
    ),
    KafkaError._FATAL: (
        "; librdkafka's log has the cause, usually a missing ACL: allow the principal Write on the topic, or "
        "IdempotentWrite on the cluster"
    ),
}
"""Advice that is added to librdkafka's text of an error, keyed by error code. Brokers give an idempotent producer an id
if its principal has Write on at least one topic, or IdempotentWrite; otherwise they answer
CLUSTER_AUTHORIZATION_FAILED."""

CONSEQUENCES: Final = frozenset({"_FATAL", "_PURGE_QUEUE", "_PURGE_INFLIGHT"})
"""Failure reasons of single records that are only consequences of a fatal error of librdkafka; the fatal error itself
is reported instead."""

REFUSED_RECORD_REASONS: Final = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_RECORD"})
CAUSE_LOST: Final = "returned NULL without setting an exception"
"""Text of Python's SystemError if a call into librdkafka has failed but a callback has cleared its exception."""


class ProduceFailed(Exception):
    """A record was not written, or may not have been written. `reason` is the broker's or librdkafka's error name."""

    def __init__(self, topic: str, reason: str, detail: str) -> None:
        super().__init__(f"could not write to topic {topic!r}: {reason}: {detail}")
        self.topic = topic
        self.reason = reason

    @property
    def refuses_record(self) -> bool:
        """True if the topic will never accept this record; every other failure may be transient."""
        return self.reason in REFUSED_RECORD_REASONS


@dataclass(slots=True, eq=False)
class SendHandle:
    """One record in flight. Once `done`, `error` is None if the record was written, otherwise the failure."""

    topic: str
    done: bool = False
    error: ProduceFailed | None = None

    def _refused(self, error: KafkaError) -> None:
        self.fail(error.name(), error.str() + ADVICE.get(error.code(), ""))

    def fail(self, reason: str, detail: str) -> None:
        self.error, self.done = ProduceFailed(self.topic, reason, detail), True


class RecordProducer:
    """An idempotent producer with acks from all in-sync replicas. Only one thread may use it.

    `settings` are librdkafka's properties (`settings.connection_config` makes the connection's properties). The
    constructor raises SettingsRefused for settings that librdkafka does not accept.

    `message_max_bytes` is the `max.message.bytes` of the topics, or None if unknown. No batch of several records
    exceeds this size. For a single record, only the broker checks the size: it counts bytes after compression,
    librdkafka before compression. A record that the broker refuses as too large is sent once more, alone and with
    `DENSE` compression. This may succeed, because the record's source may have compressed it better, or because its
    batch was too large.
    """

    def __init__(self, settings: Mapping[str, Any], *, message_max_bytes: int | None = None) -> None:
        self._settings = {**DEFAULTS, **_limits(message_max_bytes), **settings, "error_cb": self._on_error}
        # The file watches start before the producer reads the files, so that no renewal in between is missed.
        self._tls_files = tls_files(settings)
        self._added_authorities = AddedAuthorities(settings)
        self._login = Login(settings)
        try:
            self._producer = Producer(resolved(self._settings))
        except KafkaException as refused:
            raise SettingsRefused(f"the producer's settings: {refused.args[0].str()}") from refused
        # The producer with `DENSE` compression; made when a record is too large for the first time.
        self._dense: Producer | None = None
        # True if librdkafka has reported an error since the last complete flush.
        self._had_error = False
        # True if one of these errors was about certificates.
        self._tls_failed = False
        # True after a fatal error, after which librdkafka's producer accepts no more records.
        self._dead = False
        # All unfinished handles, and some finished handles. After a fatal error, callbacks are lost, so the error must
        # end the handles.
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
        """Pass one record to librdkafka without waiting for its acknowledgement; strings are written as UTF-8.

        If `partition` is None, the key decides. A partition number that the topic lacks is halved until the partition
        exists. So all producers that know the same partition count choose the same partition. If librdkafka refuses the
        record (too large, or queue full for a second), the handle has the error like any other failure.
        """
        self._reopen_after_error()
        if self._added_authorities.were_added(_CLOCK.monotonic()) and not (self._in_flight() and self._flush(DRAIN_S)):
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
            """Send the record to another partition or with dense compression. Returns False if neither would help."""
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
                # The record may be lost, because librdkafka counts a batch as written once a later batch is written.
                # For example, the broker refuses the earlier batch because it does not lead the partition yet. It then
                # accepts the later batch, because it accepts any sequence number of a producer that it does not know
                # (KIP-360). A duplicate is better than a lost record.
                self._produce(producer, handle, key, value, headers, partition, sent + 1)
            else:
                handle.fail("NoOffset", f"acknowledged {sent} times without an offset, so it may be lost")

        extra: dict[str, Any] = {} if partition is None else {"partition": partition}
        for attempt in range(2):
            try:
                producer.produce(handle.topic, value, key, headers=headers, on_delivery=delivered, **extra)
                return
            except BufferError as full:
                if attempt:
                    handle.fail("QueueFull", str(full))
                elif not self._served(producer, 1.0):
                    return
            except KafkaException as refused:
                error: KafkaError = refused.args[0]
                # After a fatal error librdkafka only returns _FATAL; the next poll raises the error itself.
                reported = error.code() == KafkaError._FATAL and not self._served(producer, 0)
                if not reported and not again(error):
                    handle._refused(error)
                return

    def _served(self, producer: Producer, timeout_s: float) -> bool:
        """Let librdkafka run its callbacks. Returns False after a fatal error; all open handles have then failed."""
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
        """Wait for at most `timeout_s` until every send has ended. Returns the number of unfinished sends."""
        self._reopen_after_error()
        left = self._flush(timeout_s)
        if not left:
            if self._added_authorities.were_added(_CLOCK.monotonic()):
                self._reopen()
            self._had_error = False
            self._sort_out()
        return left

    def _flush(self, timeout_s: float) -> int:
        deadline = _CLOCK.monotonic() + timeout_s
        try:
            left = int(self._producer.flush(timeout_s))
            if self._dense is not None:
                # The dense producer is flushed second, because it gets the records that were too large for the other.
                left += int(self._dense.flush(max(0.0, deadline - _CLOCK.monotonic())))
        except (KafkaException, SystemError) as failure:
            self._end(failure)
            return 0
        return left

    def abandon(self) -> None:
        """Give up all records in flight. Afterwards every send has ended, and no more records may be sent."""
        _give_up(self._producer)
        if self._dense is not None:  # second, as in `_flush`
            _give_up(self._dense)
        self._sort_out()
        for handle in self._open:
            handle.fail("_FATAL", "the producer was given up after a fatal error of librdkafka")
        self._open = []

    def _sort_out(self) -> None:
        self._open = [handle for handle in self._open if not handle.done]

    def _end(self, failure: KafkaException | SystemError) -> None:
        """End the producer after a fatal error; the next send makes a new one."""
        error = _fatal_error(failure)
        logger.warning("the producer ended: %s: %s", error.name(), error.str())
        self._dead = True
        opened = self._open
        self.abandon()
        for handle in opened:
            if handle.error is not None and handle.error.reason in CONSEQUENCES:
                handle._refused(error)

    def _replaced(self, handle: SendHandle) -> bool:
        """Replace the producer after a fatal error; on failure, fail the handle and return False."""
        # Called before the producer reads the files, so that no renewal in between is missed.
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
        """After an error, switch to renewed credentials. Renewed TLS files need a new producer, because librdkafka
        reads the files only once.

        Only the old producer can find out whether records in flight were written; a new producer could write them
        twice. So it is normally replaced only when no record is in flight. After an error about certificates, it is
        replaced even with records in flight. The records in flight are then given up (`_PURGE_QUEUE`,
        `_PURGE_INFLIGHT`), so that the caller can resend them before the delivery timeout.
        """
        if not self._had_error:
            return
        self._login.renew(self._producer, *([] if self._dense is None else [self._dense]))
        if self._tls_files.changed() and (self._tls_failed or not self._in_flight()):
            self._reopen()

    def _reopen(self) -> None:
        """Replace the producer with a new one, which reads the current TLS files. Gives up all records in flight."""
        if self._dead:  # the next send replaces the producer
            return
        # Unusable files count as used too, so they are tried again only after their next change.
        self._tls_files.changed()
        self._tls_files.used()
        self._added_authorities.used()
        try:
            fresh = Producer(resolved(self._settings))
        except (
            KafkaException
        ) as refused:  # files are incomplete or wrong; the old producer keeps trying with the old files
            logger.warning("renewed TLS files cannot be used: %s", refused.args[0].str())
            return
        old = [self._producer, *([] if self._dense is None else [self._dense])]
        self._producer, self._dense = fresh, None
        for each in old:
            _give_up(each)
        self._had_error = self._tls_failed = False
        logger.info("TLS files have changed: the producer is replaced to use them")

    def _in_flight(self) -> bool:
        return any(not handle.done for handle in self._open)

    def _on_error(self, error: KafkaError) -> None:
        self._had_error = True
        # librdkafka reports a refused client certificate as _TRANSPORT, with OpenSSL's text.
        if error.code() == KafkaError._SSL or "SSL routines" in error.str():
            self._tls_failed = True


def _give_up(producer: Producer) -> None:
    producer.purge()
    try:
        producer.flush(PURGE_S)
    except (KafkaException, SystemError) as failure:
        logger.warning("the producer ended: %s", _fatal_error(failure).str())


def _fatal_error(failure: KafkaException | SystemError) -> KafkaError:
    """Return the fatal error of librdkafka that caused `failure`. If callbacks run before the fatal error is raised,
    Python raises a SystemError instead. If this SystemError has no cause, the details of the fatal error are lost. Any
    other SystemError is raised again."""
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
    """Return librdkafka's properties for topics with this `max.message.bytes`.

    If a batch is too large, brokers refuse all of its records, even the small ones. So batches are kept below the
    topics' limit. If this limit is unknown, batches are kept below 64 KiB (HEADERS_BYTES_MAX), which every managed
    topic accepts. librdkafka's limit of a record is raised, because its default, 1,000,000 bytes, is below the brokers'
    default.
    """
    known = HEADERS_BYTES_MAX if message_max_bytes is None else message_max_bytes
    return {"message.max.bytes": RECORD_BYTES_MAX, "batch.size": min(BATCH_BYTES_MAX, known)}


MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("=i")
_PROBE = "fleet-probe"


def group_metadata(group_id: str, generation: int, member_id: str, instance_id: str | None) -> bytes:
    """Return the group metadata for `Producer.send_offsets_to_transaction`. Raises GroupMetadataUnknown."""
    _check_format()
    return _built(group_id, generation, member_id, instance_id)


def _built(group_id: str, generation: int, member_id: str, instance_id: str | None) -> bytes:
    strings = [group_id, member_id]
    absent = b"\x01"
    if instance_id is not None:
        strings.append(instance_id)
        absent = b"\x00"
    group, member, *instance = [text.encode() + b"\x00" for text in strings]
    return MAGIC + _GENERATION.pack(generation) + group + member + absent + b"".join(instance)


@cache
def _check_format() -> None:
    """Compare our group metadata with librdkafka's, for a dynamic and a static consumer. These consumers never connect.
    Raises GroupMetadataUnknown if they differ."""
    for instance in (None, "probe-instance"):
        extra = {} if instance is None else {"group.instance.id": instance}
        consumer = confluent_kafka.Consumer({"group.id": _PROBE, **extra})
        try:
            real = bytes(consumer.consumer_group_metadata())
        finally:
            consumer.close()
        if real != _built(_PROBE, -1, "", instance):
            raise GroupMetadataUnknown(
                f"librdkafka {confluent_kafka.libversion()[0]} writes group metadata as {real[:16]!r}…, but only "
                f"{MAGIC!r} is supported here; offsets cannot be part of a transaction with it"
            )
