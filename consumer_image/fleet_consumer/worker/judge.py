"""What becomes of one record: decoded, answered, failed or dropped, and what is written for it.

Every method here begins writes and waits for none; `writing` sees them through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fleet_consumer.clock import Clock
from fleet_consumer.handlers.answers import Outputs
from fleet_consumer.handlers.decoding import Decoder
from fleet_consumer.handlers.performing import Result
from fleet_consumer.record import Record
from fleet_consumer.retry.failure import Drop, Failure, FailureReason, classify
from fleet_consumer.retry.headers import failed_headers
from fleet_consumer.worker.logs import LineBudget, about, fields
from fleet_consumer.worker.outbox import Outbox, Outgoing
from fleet_consumer.worker.progress import PartitionProgress, Unfinished
from fleet_consumer.worker.stats import DONE, DROPPED, FAILED, Stats

LOG = logging.getLogger("fleet_consumer.worker")

Handle = Callable[[Record], Any]


class Judge:
    """Turns what handlers answer and raise into writes and counts. Used by the consume loop's thread only."""

    def __init__(
        self, *, outbox: Outbox, outputs: Outputs, failed_topic: str, group_id: str, stats: Stats, clock: Clock
    ) -> None:
        self._outbox = outbox
        self._outputs = outputs
        self._failed_topic = failed_topic
        self._group_id = group_id
        self._stats = stats
        self._clock = clock
        self._budget = LineBudget()
        self._raw: tuple[Record, bytes | None, bytes | None] | None = None

    def decoding(self, handle: Handle, decode_key: Decoder | None, decode_value: Decoder | None) -> Handle:
        """`handle` with decoding in front of it; `handle` itself when there is nothing to decode.

        Decoding replaces key and value in the record, which nobody else reads; the bytes are remembered until the
        next record, because a failed record is written as it was read.
        """
        if decode_key is None and decode_value is None:
            return handle

        def decode_and_handle(record: Record) -> Any:
            self._raw = (record, record.key, record.value)
            if decode_key is not None and record.key is not None:
                record.key = decode_key(record.key)
            if decode_value is not None and record.value is not None:
                record.value = decode_value(record.value)
            return handle(record)

        return decode_and_handle

    def answered(self, partition: PartitionProgress[Outgoing], record: Record, answer: object) -> int:
        """Begin to write what a handler returned. 1 when the record counts later, 0 when nothing was to be written.

        Raises what makes the answer unusable, which is then the record's failure.
        """
        produces = self._outputs.of(answer)
        if not produces:
            return 0
        writes = [self._outbox.write(p.topic, key=p.key, value=p.value, headers=p.headers) for p in produces]
        self._stats.produced += len(writes)
        partition.unfinished.append(Unfinished(record, *self._as_read(record), DONE, writes))
        return 1

    def raised(self, partition: PartitionProgress[Outgoing], record: Record, error: BaseException) -> int:
        """Begin to write the record into the failed topic, or drop it, as its error asks for. Always 1."""
        verdict = classify(error)
        if isinstance(verdict, Drop):
            self._stats.dropped += 1
            self._tell("record dropped", record, reason="skip", error=verdict.message)
            return 1
        key, value = self._as_read(record)
        write = self._failed_write(record, key, value, verdict)
        partition.unfinished.append(Unfinished(record, key, value, FAILED, [write]))
        self._tell_failed(record, verdict)
        return 1

    def conclude(self, unfinished: Unfinished[Outgoing], result: Result) -> None:
        """A record that stood in `unfinished` since it was taken up has come back from its handler elsewhere.

        What came back is checked already, so nothing here can fail.
        """
        unfinished.handled, unfinished.handled_at = True, self._clock.monotonic()
        if result.error is None:
            unfinished.result = DONE
            unfinished.writes = [
                self._outbox.write(p.topic, key=p.key, value=p.value, headers=p.headers) for p in result.produces
            ]
            self._stats.produced += len(unfinished.writes)
            return
        verdict = classify(result.error)
        if isinstance(verdict, Drop):
            unfinished.result = DROPPED
            self._tell("record dropped", unfinished.record, reason="skip", error=verdict.message)
            return
        unfinished.result = FAILED
        unfinished.writes = [self._failed_write(unfinished.record, unfinished.key, unfinished.value, verdict)]
        self._tell_failed(unfinished.record, verdict)

    def refused(self, unfinished: Unfinished[Outgoing], failure: Failure) -> None:
        """An output of this record will never be taken: the record itself fails instead."""
        write = self._failed_write(unfinished.record, unfinished.key, unfinished.value, failure)
        unfinished.writes, unfinished.result = [write], FAILED
        self._tell("record failed", unfinished.record, reason=failure.reason.value, error=failure.message)

    def _failed_write(self, record: Record, key: bytes | None, value: bytes | None, failure: Failure) -> Outgoing:
        headers = failed_headers(record, failure, group_id=self._group_id, now_ms=int(self._clock.wall() * 1000))
        return self._outbox.write(self._failed_topic, key=key, value=value, headers=headers)

    def _as_read(self, record: Record) -> tuple[bytes | None, bytes | None]:
        if self._raw is not None and self._raw[0] is record:
            return self._raw[1], self._raw[2]
        return record.key, record.value

    def _tell_failed(self, record: Record, failure: Failure) -> None:
        if failure.reason is FailureReason.TIMEOUT:
            self._stats.timeouts += 1
        self._tell(
            "record failed", record, reason=failure.reason.value, errorClass=failure.error_class, error=failure.message
        )

    def _tell(self, message: str, record: Record, **values: object) -> None:
        allowed, left_out = self._budget.spend(self._clock.monotonic())
        if left_out:
            LOG.warning("lines about single records were left out", extra=fields(count=left_out))
        if allowed:
            LOG.warning(message, extra=fields(**about(record), **values))
