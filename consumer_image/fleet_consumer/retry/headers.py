"""The `kr-` headers of records in managed topics: origin, failures and retry history.

The names are reserved. Values are UTF-8, times are decimal milliseconds since the epoch. Each retry publish replaces
the headers of these names. All other headers, including trace context, pass through unchanged and in order.

Anybody with write access to a managed topic can forge the headers, and their bytes can be damaged. So headers are
parsed strictly, their numbers are limited, and they never determine where a record is written. Damaged headers are
counted, but do not fail the record.

Decisions: docs/decisions/0013-retry-identity.md, docs/decisions/0023-replay-epochs.md.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract.policies import REVISION, HeaderProfile, Policies, Policy
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Headers, Record
from fleet_consumer.retry.failure import Failure

_EPOCH_METADATA: Final = re.compile(r"fleet-replay-epoch=([0-9]{1,19})(?:;id=([0-9a-f]{16})(?:;until=([0-9]{1,19}))?)?")
REPLAY_EPOCH_ID: Final = re.compile(rb"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ReplayEpoch:
    """One pass over a partition, from an offset reset to the next offset reset. The first pass has no id.

    It tells duplicates from new retry publishes. A new owner of a partition repeats its predecessor's work since the
    last commit, so the retry publishes of both are duplicates. After an offset reset the same records may fail again,
    but then their retry publishes are new.

    The commit that a new owner finds distinguishes the two cases. Every commit of a worker has the replay epoch in its
    metadata, so the id passes from owner to owner. Tools that reset offsets do not write this metadata, and deleted
    offsets leave no commit. So a missing commit, or a commit without a replay epoch, begins a replay epoch with a new
    id. The metadata repeats the offset, in case a tool changes the offset but keeps the metadata.

    `until` is the partition's end offset when the epoch began. Records from `until` on are read for the first time, so
    they belong to no epoch. If `until` is None, all records belong to the epoch.
    """

    id: str | None = None
    until: int | None = None

    def at(self, offset: int) -> str | None:
        return self.id if self.until is None or offset < self.until else None

    def metadata(self, offset: int) -> str:
        known = self.at(offset)
        if known is None:
            return f"fleet-replay-epoch={offset}"
        return f"fleet-replay-epoch={offset};id={known}" + ("" if self.until is None else f";until={self.until}")


def continued(committed: OffsetAndMetadata | None) -> ReplayEpoch | None:
    """Return the replay epoch that a commit continues; None if a new epoch begins. Other tools also write metadata, so
    only an exact match with this commit's offset counts."""
    if committed is None:
        return None
    for field in committed.metadata.split(" "):
        found = _EPOCH_METADATA.fullmatch(field)
        if found is not None and int(found[1]) == committed.offset:
            return ReplayEpoch(found[2], None if found[3] is None else int(found[3]))
    return None


def carried_on(earlier: str | None, now: str | None) -> str | None:
    """Return the id of the replay epoch for a record's next retry publish, or None for the first pass.

    `earlier` is the id in the record's headers; `now` is the id for the partition where the record was read. If both
    exist, the retry topic itself is replayed, and its retry publishes are new. So the result is a new id, made from
    both.
    """
    if now is None or earlier is None:
        return earlier if now is None else now
    return hashlib.blake2b(f"{earlier} {now}".encode(), digest_size=8).hexdigest()


HEADER_PREFIX: Final = "kr-"

ATTEMPT: Final = "kr-attempt"
NOT_BEFORE: Final = "kr-not-before"
DELAY_MS: Final = "kr-delay-ms"
FIRST_FAILED_AT: Final = "kr-first-failed-at"
FAILED_AT: Final = "kr-failed-at"
GROUP: Final = "kr-group"
POLICY: Final = "kr-policy"
ORIGIN_TOPIC: Final = "kr-origin-topic"
ORIGIN_PARTITION: Final = "kr-origin-partition"
ORIGIN_OFFSET: Final = "kr-origin-offset"
ORIGIN_TIMESTAMP: Final = "kr-origin-timestamp"
REPLAY_EPOCH: Final = "kr-replay-epoch"
ERROR_CLASS: Final = "kr-error-class"
ERROR_CODE: Final = "kr-error-code"
ERROR_MESSAGE: Final = "kr-error-message"
ERROR_STACK: Final = "kr-error-stack"
REASON: Final = "kr-reason"
REDRIVE_ID: Final = "kr-redrive-id"
REDRIVE_COUNT: Final = "kr-redrive-count"
REDRIVEN_AT: Final = "kr-redriven-at"
REDRIVE_SOURCE: Final = "kr-redrive-source"
BACKFILL_ID: Final = "kr-backfill-id"
OUTPUT_INDEX: Final = "kr-backfill-output"
OUTPUT_TOPIC: Final = "kr-backfill-topic"

SPRING_PREFIX: Final = "kafka_dlt-"
SPRING_CLASS: Final = f"{SPRING_PREFIX}exception-fqcn"
SPRING_MESSAGE: Final = f"{SPRING_PREFIX}exception-message"

DETAILS: Final = frozenset({ERROR_CLASS, ERROR_CODE, ERROR_MESSAGE, ERROR_STACK, SPRING_CLASS, SPRING_MESSAGE})
"""Headers whose size depends on the handler; omitted if the record would otherwise be too large for its topic."""

NUMBER_MIN: Final = -(2**63)
NUMBER_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1
REDRIVES_MAX: Final = 1_000
"""Maximum number of redrives in a header. A larger number must be forged, so it counts as damage."""
SKEW_MS: Final = 60_000
"""Tolerated clock skew in milliseconds. A time further in the future counts as damage."""

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_TOPIC: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
_POLICY: Final = re.compile(rb"[^@]{1,253}@(" + REVISION.encode() + rb")", re.DOTALL)
_REDRIVE_ID: Final = re.compile(rb"[A-Za-z0-9-]{1,64}")

HeaderList = list[tuple[str, bytes | None]]
Values = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Origin:
    """A record's place in its source topic. `timestamp` is in milliseconds since 1970, negative if the record has
    none."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class RetryHistory:
    """A record's retry history, from its valid headers.

    `attempt` is the number of this delivery, from 0. `policy` is the policy revision that applies to the record; None
    means the newest revision. `damaged` is true if any of our headers was invalid.
    """

    origin: Origin
    attempt: int = 0
    first_failed_at: int | None = None
    policy: str | None = None
    redrive_id: str | None = None
    redrive_count: int = 0
    redriven_at: int | None = None
    damaged: bool = False
    replay_epoch: str | None = None


def read(record: Record, *, now_ms: int) -> RetryHistory:
    """Read the retry history of a record of a managed topic from its headers. Never raises. Without a valid origin in
    the headers, the origin is the place where the record was read."""
    parser = _HeaderParser(record.headers, now_ms)
    if ATTEMPT not in parser.values:
        parser.damaged = True  # workers write this header in every record
    origin = parser.origin()
    return RetryHistory(
        origin=origin if origin is not None else _here(record),
        attempt=parser.number(ATTEMPT, 0, NUMBER_MAX) or 0,
        first_failed_at=parser.time(FIRST_FAILED_AT),
        policy=parser.text(POLICY, _POLICY),
        redrive_id=parser.text(REDRIVE_ID, _REDRIVE_ID),
        redrive_count=parser.number(REDRIVE_COUNT, 0, REDRIVES_MAX) or 0,
        redriven_at=parser.time(REDRIVEN_AT),
        replay_epoch=parser.text(REPLAY_EPOCH, REPLAY_EPOCH_ID),
        damaged=parser.damaged,
    )


def clamped(history: RetryHistory, policies: Policies) -> RetryHistory:
    """Return the retry history with its attempt limited to the number of delays of the record's policy revision. A
    larger attempt counts as damage. If the record's revision is unknown, another revision sets the limit, and a larger
    attempt is not damage."""
    policy, known = policies.find_revision(history.policy)
    last = len(policy.sequence)
    return history if history.attempt <= last else replace(history, attempt=last, damaged=history.damaged or known)


def first_history(record: Record) -> RetryHistory:
    """Return the retry history of a record from a source topic, whose `kr-` headers are ignored."""
    return RetryHistory(_here(record), record.attempt, record.first_failed_at)


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A delivery that failed at `now_ms` (milliseconds since 1970)."""

    record: Record
    failure: Failure
    group_id: str
    now_ms: int
    history: RetryHistory


def retry_headers(delivery: FailedDelivery, policy: Policy, *, delay_s: int) -> HeaderList:
    """Return the headers of a failed record's copy in a retry topic: the record's own headers, then ours.
    `kr-not-before` is an estimate for people; the due time follows from the append time."""
    values = {
        ATTEMPT: delivery.history.attempt + 1,
        NOT_BEFORE: delivery.now_ms + delay_s * 1000,
        DELAY_MS: delay_s * 1000,
        POLICY: policy.label,
        **_failure_values(delivery),
    }
    return foreign_headers(delivery.record.headers) + _encoded(values)


def failed_headers(delivery: FailedDelivery, policy: Policy | None = None) -> HeaderList:
    """Return the headers of a failed record's copy in the failed topic: the record's own headers, then ours. If the
    record has failed before, the header with the time of its first failure is kept."""
    failure = delivery.failure
    values = {
        ATTEMPT: delivery.history.attempt,
        POLICY: None if policy is None else policy.label,
        **_failure_values(delivery),
        REASON: failure.reason.value,
        ERROR_STACK: failure.stack or None,
    }
    kept, extra = foreign_headers(delivery.record.headers), HeaderList()
    if policy is not None and policy.header_profile is HeaderProfile.SPRING:
        details = (_bytes(text) for text in (failure.error_class, failure.message, delivery.group_id))
        extra = spring_aliases(delivery.history.origin, *details)
        replaced = {name for name, _ in extra}
        kept = [(name, value) for name, value in kept if name not in replaced]
    return kept + _encoded(values) + extra


def spring_aliases(origin: Origin, error_class: bytes, message: bytes, group: bytes) -> HeaderList:
    """Return Spring for Apache Kafka's headers of a dead-lettered record, for user interfaces that need them.

    These headers are set in the failed topic only, and never read by our code. Strings are UTF-8. Numbers are
    big-endian: 4 bytes for the partition, 8 for offset and time. Source: `DeadLetterPublishingRecoverer` and
    `KafkaHeaders` of spring-kafka 3. Spring's header for the timestamp type is omitted, because `Record` has no
    timestamp type.
    """
    return [
        (f"{SPRING_PREFIX}original-topic", origin.topic.encode()),
        (f"{SPRING_PREFIX}original-partition", origin.partition.to_bytes(4, "big", signed=True)),
        (f"{SPRING_PREFIX}original-offset", origin.offset.to_bytes(8, "big", signed=True)),
        (f"{SPRING_PREFIX}original-timestamp", origin.timestamp.to_bytes(8, "big", signed=True)),
        (f"{SPRING_PREFIX}original-consumer-group", group),
        (SPRING_CLASS, error_class),
        (SPRING_MESSAGE, message),
    ]


def redriven_headers(
    headers: Headers, history: RetryHistory, *, redrive_id: str, source: str, now_ms: int
) -> HeaderList:
    """Return the headers of a failed record's copy in the redrive topic. The attempt is 0, and the redrive count is
    increased by one. The origin and the time of the first failure are unchanged.

    `source` is the record's place in the failed topic (`partition:offset`). Headers of earlier retries are dropped, so
    that the record has all attempts again, under the newest policy.
    """
    values = {
        ATTEMPT: 0,
        **_origin(history),
        FIRST_FAILED_AT: history.first_failed_at,
        REDRIVE_ID: redrive_id,
        REDRIVE_COUNT: history.redrive_count + 1,
        REDRIVEN_AT: now_ms,
        REDRIVE_SOURCE: source,
    }
    ours = last_values(headers)
    group = ours.get(GROUP)
    # Headers of the Spring profile are also dropped if their values are ours.
    aliases = spring_aliases(history.origin, *(ours.get(name) or b"" for name in (ERROR_CLASS, ERROR_MESSAGE, GROUP)))
    kept = [header for header in foreign_headers(headers) if header not in aliases]
    return kept + ([(GROUP, group)] if group is not None else []) + _encoded(values)


def origin_headers(history: RetryHistory, values: Values) -> HeaderList:
    """Return headers for a Backfill's outputs: the record's origin, and `values`."""
    return _encoded({**_origin(history), **values})


def without_details(headers: Headers) -> HeaderList:
    """Return the headers without the error's class, rule, text and stack, for a record that would otherwise be too
    large."""
    return [(name, value) for name, value in headers if name not in DETAILS]


def foreign_headers(headers: Headers) -> HeaderList:
    """Return the headers that are not ours, in order, including duplicates."""
    return [(name, value) for name, value in headers if not name.startswith(HEADER_PREFIX)]


def last_values(headers: Headers) -> dict[str, bytes | None]:
    """Return our headers, keyed by name. If a name occurs several times, the last header counts."""
    return {name: value for name, value in headers if name.startswith(HEADER_PREFIX)}


def _failure_values(delivery: FailedDelivery) -> Values:
    history, failure = delivery.history, delivery.failure
    return {
        FIRST_FAILED_AT: history.first_failed_at if history.first_failed_at is not None else delivery.now_ms,
        FAILED_AT: delivery.now_ms,
        GROUP: delivery.group_id,
        **_origin(history),
        REDRIVE_ID: history.redrive_id,
        REDRIVE_COUNT: history.redrive_count or None,
        REDRIVEN_AT: history.redriven_at,
        ERROR_CLASS: failure.error_class,
        ERROR_MESSAGE: failure.message,
        ERROR_CODE: failure.rule or None,
    }


def _origin(history: RetryHistory) -> Values:
    return {
        ORIGIN_TOPIC: history.origin.topic,
        ORIGIN_PARTITION: history.origin.partition,
        ORIGIN_OFFSET: history.origin.offset,
        ORIGIN_TIMESTAMP: history.origin.timestamp,
        REPLAY_EPOCH: history.replay_epoch,
    }


def _encoded(values: Values) -> HeaderList:
    """Return headers for all values except None."""
    return [(name, _bytes(str(value))) for name, value in values.items() if value is not None]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _here(record: Record) -> Origin:
    return Origin(record.topic, record.partition, record.offset, record.timestamp)


class _HeaderParser:
    """Parses one record's `kr-` headers. `damaged` becomes true if a header is invalid."""

    def __init__(self, headers: Headers, now_ms: int) -> None:
        self.values = last_values(headers)
        self.damaged = False
        self._now_ms = now_ms

    def number(self, name: str, least: int, most: int) -> int | None:
        """Return the header's number, but at most `most`; None if the header is absent or invalid."""
        value = self.values.get(name)
        if name not in self.values:
            return None
        number = int(value) if value is not None and _NUMBER.fullmatch(value) else None
        self.damaged |= number is None or not least <= number <= most
        return None if number is None or number < least else min(number, most)

    def time(self, name: str) -> int | None:
        """Return the header's time in milliseconds since 1970, but at most the current time; None if the header is
        absent or invalid."""
        time = self.number(name, 0, self._now_ms + SKEW_MS)
        return None if time is None else min(time, self._now_ms)

    def origin(self) -> Origin | None:
        """Return the origin; None unless topic, partition and offset are all valid."""
        topic = self.text(ORIGIN_TOPIC, _TOPIC)
        partition = self.number(ORIGIN_PARTITION, 0, PARTITION_MAX)
        offset = self.number(ORIGIN_OFFSET, 0, NUMBER_MAX)
        timestamp = self.number(ORIGIN_TIMESTAMP, NUMBER_MIN, NUMBER_MAX)
        if topic is None or partition is None or offset is None:
            self.damaged = True
            return None
        return Origin(topic, partition, offset, -1 if timestamp is None else timestamp)

    def text(self, name: str, pattern: re.Pattern[bytes]) -> str | None:
        """Return the header's text or, if the pattern has a group, the part that the group matches. None if the header
        is absent or invalid."""
        value = self.values.get(name)
        if name not in self.values:
            return None
        match = pattern.fullmatch(value) if value is not None else None
        if match is None:
            self.damaged = True
            return None
        return match[pattern.groups].decode()
