"""The `kr-` headers of records in managed topics: origin, failures and history.

The names are reserved; values are UTF-8, times decimal milliseconds since the epoch. They replace earlier headers of
these names, so each hop overwrites the last; every other header passes through unchanged and in order, trace context
included.

Anybody who may write to a managed topic can forge them, and bytes can be damaged. So they are read strictly and
clamped; damage is counted, is no reason to fail a record, and headers never name a target.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract.policies import REVISION, HeaderProfile, Policies, Policy
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Headers, Record
from fleet_consumer.retry.failure import Failure

_MARK: Final = re.compile(r"fleet-reading=([0-9]{1,19})(?:;id=([0-9a-f]{16})(?:;until=([0-9]{1,19}))?)?")
READING_ID: Final = re.compile(rb"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over a partition, ended only by an offset reset; without an id it is the first.

    A worker that takes over a partition repeats its predecessor's work since the last commit, so the hops of both are
    duplicates. After an offset reset the same records fail again, and those hops are new. The commit at which the
    partition is taken over tells the two apart. Every commit of a worker carries a mark in its metadata; tools that
    reset offsets write none, and a group whose offsets were deleted has no commit at all. So a commit without our mark
    begins a reading with a new id, and the mark carries the id from owner to owner. It names its offset, in case a tool
    moves the offset and keeps the metadata.

    `until` is the partition's end when the reading began: records from there on are read for the first time, and belong
    to no reading. None: all records belong to it.
    """

    id: str | None = None
    until: int | None = None

    def at(self, offset: int) -> str | None:
        """The reading's id for the record at `offset`."""
        return self.id if self.until is None or offset < self.until else None

    def mark(self, offset: int) -> str:
        """The mark for the metadata of a commit of `offset`."""
        known = self.at(offset)
        if known is None:
            return f"fleet-reading={offset}"
        return f"fleet-reading={offset};id={known}" + ("" if self.until is None else f";until={self.until}")


def continued(committed: OffsetAndMetadata | None) -> Reading | None:
    """The reading that a commit continues; None if a new one begins.

    Metadata may come from other tools: anything but an exact mark for this offset is ignored.
    """
    if committed is None:
        return None
    for field in committed.metadata.split(" "):
        found = _MARK.fullmatch(field)
        if found is not None and int(found[1]) == committed.offset:
            return Reading(found[2], None if found[3] is None else int(found[3]))
    return None


def carried_on(earlier: str | None, now: str | None) -> str | None:
    """The reading of a record's next hop, from that of its headers (`earlier`) and of the partition where it was read
    (`now`). A retry topic that is read again makes new hops, too."""
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
READING: Final = "kr-reading"
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
"""The headers whose size depends on the handler; omitted if a record would be too large for its topic."""

NUMBER_MIN: Final = -(2**63)
NUMBER_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1
REDRIVES_MAX: Final = 1_000
"""A larger count is forged: no Redrive moves a record that often."""
SKEW_MS: Final = 60_000
"""Longest time in the future that clock skew explains; a later one is damage."""

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_TOPIC: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
_POLICY: Final = re.compile(rb"[^@]{1,253}@(" + REVISION.encode() + rb")", re.DOTALL)
_REDRIVE_ID: Final = re.compile(rb"[A-Za-z0-9-]{1,64}")

HeaderList = list[tuple[str, bytes | None]]
Values = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Origin:
    """The first place of a record; `timestamp` in milliseconds since the epoch, negative if it had none."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Story:
    """A record's history from its headers, as far as they are valid.

    `attempt` is the number of this delivery, from 0. `policy` is the revision that it follows, None: the newest.
    `reading` identifies its reading (`retry.reading`), None: none was recorded. `damaged`: some header of ours was
    invalid; the rest is used all the same.
    """

    origin: Origin
    attempt: int = 0
    first_failed_at: int | None = None
    policy: str | None = None
    redrive_id: str | None = None
    redrive_count: int = 0
    redriven_at: int | None = None
    damaged: bool = False
    reading: str | None = None


def read(record: Record, *, now_ms: int) -> Story:
    """The story of a record read from a managed topic.

    Without a valid origin, the origin is where the record was read. Never raises.
    """
    parser = _HeaderParser(record.headers, now_ms)
    if ATTEMPT not in parser.values:
        parser.damaged = True  # every record that we write to a managed topic has one
    origin = parser.origin()
    return Story(
        origin=origin if origin is not None else _here(record),
        attempt=parser.number(ATTEMPT, 0, NUMBER_MAX) or 0,
        first_failed_at=parser.time(FIRST_FAILED_AT),
        policy=parser.text(POLICY, _POLICY),
        redrive_id=parser.text(REDRIVE_ID, _REDRIVE_ID),
        redrive_count=parser.number(REDRIVE_COUNT, 0, REDRIVES_MAX) or 0,
        redriven_at=parser.time(REDRIVEN_AT),
        reading=parser.text(READING, READING_ID),
        damaged=parser.damaged,
    )


def clamped(story: Story, policies: Policies) -> Story:
    """The story with its attempt limited to the sequence of the record's revision.

    Under another revision than its own a record may be past the end; under its own that is damage.
    """
    policy, known = policies.of(story.policy)
    last = len(policy.sequence)
    return story if story.attempt <= last else replace(story, attempt=last, damaged=story.damaged or known)


def first_story(record: Record) -> Story:
    """The story of a record read from a source topic, whose headers are not ours whatever their names."""
    return Story(_here(record), record.attempt, record.first_failed_at)


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A delivery that failed at `now_ms` (milliseconds since the epoch)."""

    record: Record
    failure: Failure
    group_id: str
    now_ms: int
    story: Story


def hop_headers(delivery: FailedDelivery, policy: Policy, *, delay_s: int) -> HeaderList:
    """The headers of a failed record's copy in a retry topic, its next attempt: its own, then ours.

    `kr-not-before` is an estimate for people; the append time decides.
    """
    values = {
        ATTEMPT: delivery.story.attempt + 1,
        NOT_BEFORE: delivery.now_ms + delay_s * 1000,
        DELAY_MS: delay_s * 1000,
        POLICY: policy.label,
        **_failure_values(delivery),
    }
    return foreign_headers(delivery.record.headers) + _encoded(values)


def failed_headers(delivery: FailedDelivery, policy: Policy | None = None) -> HeaderList:
    """The headers of a failed record's copy in the failed topic: its own, then ours.

    A record that failed before keeps the time of its first failure. Without a policy it never had an attempt left.
    """
    failure = delivery.failure
    values = {
        ATTEMPT: delivery.story.attempt,
        POLICY: None if policy is None else policy.label,
        **_failure_values(delivery),
        REASON: failure.reason.value,
        ERROR_STACK: failure.stack or None,
    }
    kept, extra = foreign_headers(delivery.record.headers), HeaderList()
    if policy is not None and policy.header_profile is HeaderProfile.SPRING:
        details = (_bytes(text) for text in (failure.error_class, failure.message, delivery.group_id))
        extra = spring_aliases(delivery.story.origin, *details)
        replaced = {name for name, _ in extra}
        kept = [(name, value) for name, value in kept if name not in replaced]
    return kept + _encoded(values) + extra


def spring_aliases(origin: Origin, error_class: bytes, message: bytes, group: bytes) -> HeaderList:
    """The headers of Spring for Apache Kafka for a dead-lettered record, aliases that user interfaces look for.

    They are on the failed topic only, and never read by us. Text is UTF-8; numbers are big-endian, a partition has 4
    bytes, offset and time have 8. Source: `DeadLetterPublishingRecoverer` and `KafkaHeaders` of spring-kafka 3.
    Spring's timestamp type is missing, because a record does not contain its own.
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


def redriven_headers(headers: Headers, story: Story, *, redrive_id: str, source: str, now_ms: int) -> HeaderList:
    """The headers of a failed record's copy in the redrive topic: attempt 0 and one more redrive.

    `source` is its place in the failed topic (`partition:offset`). The headers of its retries are dropped, so that it
    has all its attempts again, under the newest policy; its origin and its first failure stay.
    """
    values = {
        ATTEMPT: 0,
        **_origin(story),
        FIRST_FAILED_AT: story.first_failed_at,
        REDRIVE_ID: redrive_id,
        REDRIVE_COUNT: story.redrive_count + 1,
        REDRIVEN_AT: now_ms,
        REDRIVE_SOURCE: source,
    }
    ours = last_values(headers)
    group = ours.get(GROUP)
    # With our values the headers of the Spring profile are ours as well.
    aliases = spring_aliases(story.origin, *(ours.get(name) or b"" for name in (ERROR_CLASS, ERROR_MESSAGE, GROUP)))
    kept = [header for header in foreign_headers(headers) if header not in aliases]
    return kept + ([(GROUP, group)] if group is not None else []) + _encoded(values)


def origin_headers(story: Story, values: Values) -> HeaderList:
    """The headers of a record's origin and these further values of ours, as a Backfill's outputs carry them."""
    return _encoded({**_origin(story), **values})


def without_details(headers: Headers) -> HeaderList:
    """The headers without the error's class, rule, text and stack, for a record that is too large with them."""
    return [(name, value) for name, value in headers if name not in DETAILS]


def foreign_headers(headers: Headers) -> HeaderList:
    """The headers that are not ours, in order, with their duplicates."""
    return [(name, value) for name, value in headers if not name.startswith(HEADER_PREFIX)]


def last_values(headers: Headers) -> dict[str, bytes | None]:
    """Our headers; of several with one name, the last."""
    return {name: value for name, value in headers if name.startswith(HEADER_PREFIX)}


def _failure_values(delivery: FailedDelivery) -> Values:
    story, failure = delivery.story, delivery.failure
    return {
        FIRST_FAILED_AT: story.first_failed_at if story.first_failed_at is not None else delivery.now_ms,
        FAILED_AT: delivery.now_ms,
        GROUP: delivery.group_id,
        **_origin(story),
        REDRIVE_ID: story.redrive_id,
        REDRIVE_COUNT: story.redrive_count or None,
        REDRIVEN_AT: story.redriven_at,
        ERROR_CLASS: failure.error_class,
        ERROR_MESSAGE: failure.message,
        ERROR_CODE: failure.rule or None,
    }


def _origin(story: Story) -> Values:
    return {
        ORIGIN_TOPIC: story.origin.topic,
        ORIGIN_PARTITION: story.origin.partition,
        ORIGIN_OFFSET: story.origin.offset,
        ORIGIN_TIMESTAMP: story.origin.timestamp,
        READING: story.reading,
    }


def _encoded(values: Values) -> HeaderList:
    """The headers of these values; None for a header that is left out."""
    return [(name, _bytes(str(value))) for name, value in values.items() if value is not None]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _here(record: Record) -> Origin:
    return Origin(record.topic, record.partition, record.offset, record.timestamp)


class _HeaderParser:
    """A parser of one record's `kr-` headers; `damaged` turns true if one is invalid."""

    def __init__(self, headers: Headers, now_ms: int) -> None:
        self.values = last_values(headers)
        self.damaged = False
        self._now_ms = now_ms

    def number(self, name: str, least: int, most: int) -> int | None:
        """The number, clamped to `most`; None if absent or invalid."""
        value = self.values.get(name)
        if name not in self.values:
            return None
        number = int(value) if value is not None and _NUMBER.fullmatch(value) else None
        self.damaged |= number is None or not least <= number <= most
        return None if number is None or number < least else min(number, most)

    def time(self, name: str) -> int | None:
        """The time, at most now; clock skew is tolerated."""
        time = self.number(name, 0, self._now_ms + SKEW_MS)
        return None if time is None else min(time, self._now_ms)

    def origin(self) -> Origin | None:
        """The complete origin or None: half of it would point to another record."""
        topic = self.text(ORIGIN_TOPIC, _TOPIC)
        partition = self.number(ORIGIN_PARTITION, 0, PARTITION_MAX)
        offset = self.number(ORIGIN_OFFSET, 0, NUMBER_MAX)
        timestamp = self.number(ORIGIN_TIMESTAMP, NUMBER_MIN, NUMBER_MAX)
        if topic is None or partition is None or offset is None:
            self.damaged = True
            return None
        return Origin(topic, partition, offset, -1 if timestamp is None else timestamp)

    def text(self, name: str, pattern: re.Pattern[bytes]) -> str | None:
        """The text, or the pattern's group in it; None if absent or invalid."""
        value = self.values.get(name)
        if name not in self.values:
            return None
        match = pattern.fullmatch(value) if value is not None else None
        if match is None:
            self.damaged = True
            return None
        return match[pattern.groups].decode()
