"""The `kr-` headers: what a record in a managed topic tells about its origin, its failures and its way so far.

Names and meanings are one reserved family, UTF-8, times in decimal milliseconds since the epoch. They replace
whatever a record carried under these names before, so the last hop's word is the only one; every other header passes
through unchanged and in order, trace context included.

Whoever may write to a managed topic can forge them, and bytes can be damaged. So they are read strictly and clamped;
what is wrong with them is told to whoever counts it, is no reason to fail a record, and never names a target.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract.policies import REVISION, HeaderProfile, Policies, Policy
from fleet_consumer.record import Headers, Record
from fleet_consumer.retry.failure import Failure
from fleet_consumer.retry.reading import READING_ID
from fleet_consumer.retry.spring import SPRING_DETAILS, spring_aliases

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

DETAILS: Final = frozenset({ERROR_CLASS, ERROR_CODE, ERROR_MESSAGE, ERROR_STACK}) | SPRING_DETAILS
"""The only headers whose size a handler decides: what is left out when a record would be too large for its topic."""

NUMBER_MIN: Final = -(2**63)
NUMBER_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1
REDRIVES_MAX: Final = 1_000
"""A count beyond this is a forgery: no Redrive moves a record that often."""
SKEW_MS: Final = 60_000
"""How far in the future a time may lie before it is damage and not two clocks that disagree."""

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_TOPIC: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
_POLICY: Final = re.compile(rb"[^@]{1,253}@(" + REVISION.encode() + rb")", re.DOTALL)
_REDRIVE_ID: Final = re.compile(rb"[A-Za-z0-9-]{1,64}")

HeaderList = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record was before anything failed. `timestamp` is in milliseconds since the epoch, -1 when it had none;
    whoever writes may give other negative ones, too."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Story:
    """What a record's headers tell, as far as it can be believed.

    `attempt` is the delivery that this is: 0 the first. `policy` is the revision that it follows, None: the newest.
    `reading` is the reading that it belongs to (`retry.reading`), None: nothing of it was read before.
    `damaged` says that something under our names could not be used as it stood; the rest holds all the same.
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
    """The story of a record that was read from a managed topic.

    Without an origin that can be believed, it is where the record was read. Never raises, whatever the headers are.
    """
    reading = _Reading(record.headers, now_ms)
    if ATTEMPT not in reading.values:
        reading.damaged = True  # every record that we write to a managed topic has one
    origin = reading.origin()
    return Story(
        origin=origin if origin is not None else _here(record),
        attempt=reading.number(ATTEMPT, 0, NUMBER_MAX) or 0,
        first_failed_at=reading.time(FIRST_FAILED_AT),
        policy=reading.policy(),
        redrive_id=reading.redrive_id(),
        redrive_count=reading.number(REDRIVE_COUNT, 0, REDRIVES_MAX) or 0,
        redriven_at=reading.time(REDRIVEN_AT),
        reading=reading.reading(),
        damaged=reading.damaged,
    )


def clamped(story: Story, policies: Policies) -> Story:
    """The same with an attempt beyond the sequence of the record's revision as its last one.

    Under another revision than its own a record may be past the end; under its own that is damage.
    """
    policy, known = policies.of(story.policy)
    last = len(policy.sequence)
    return story if story.attempt <= last else replace(story, attempt=last, damaged=story.damaged or known)


def first_story(record: Record) -> Story:
    """The story of a record that was read from a source topic: its own headers are not ours, whatever their names."""
    return Story(_here(record), record.attempt, record.first_failed_at)


def hop_headers(
    record: Record, story: Story, failure: Failure, policy: Policy, *, delay_s: int, group_id: str, now_ms: int
) -> HeaderList:
    """The headers of `record`'s copy in a retry topic, which is its next attempt: its own ones, then ours.

    `now_ms` is when it failed; `kr-not-before` is an estimate for people, for what counts is the append time.
    """
    told = {
        ATTEMPT: str(story.attempt + 1),
        NOT_BEFORE: str(now_ms + delay_s * 1000),
        DELAY_MS: str(delay_s * 1000),
        POLICY: policy.label,
        **_told(story, failure, group_id, now_ms),
    }
    return foreign_headers(record.headers) + _encoded(told)


def failed_headers(
    record: Record,
    failure: Failure,
    *,
    group_id: str,
    now_ms: int,
    story: Story | None = None,
    policy: Policy | None = None,
) -> HeaderList:
    """The headers of `record`'s copy in the failed topic: its own ones, then ours.

    `now_ms` is when it failed. A record that failed before keeps the time of its first failure. Without a story it
    came from a source topic; without a policy it never had an attempt left.
    """
    known = story if story is not None else first_story(record)
    told = {
        ATTEMPT: str(known.attempt),
        **({POLICY: policy.label} if policy is not None else {}),
        **_told(known, failure, group_id, now_ms),
        REASON: failure.reason.value,
        **({ERROR_STACK: failure.stack} if failure.stack else {}),
    }
    kept, extra = foreign_headers(record.headers), HeaderList()
    if policy is not None and policy.header_profile is HeaderProfile.SPRING:
        error_class, message, group = (_bytes(text) for text in (failure.error_class, failure.message, group_id))
        extra = spring_aliases(known.origin, error_class, message, group)
        replaced = {name for name, _ in extra}
        kept = [(name, value) for name, value in kept if name not in replaced]
    return kept + _encoded(told) + extra


def redriven_headers(headers: Headers, story: Story, *, redrive_id: str, source: str, now_ms: int) -> HeaderList:
    """The headers of a failed record's copy in the redrive topic: it begins anew, and remembers how often it has.

    `source` is its place in the failed topic (`partition:offset`). What decided about its waiting is dropped, so that
    it has all its attempts again, under the newest policy; its origin and its first failure stay.
    """
    told = {
        ATTEMPT: "0",
        **_origin(story),
        **({FIRST_FAILED_AT: str(story.first_failed_at)} if story.first_failed_at is not None else {}),
        REDRIVE_ID: redrive_id,
        REDRIVE_COUNT: str(story.redrive_count + 1),
        REDRIVEN_AT: str(now_ms),
        REDRIVE_SOURCE: source,
    }
    group = last_values(headers).get(GROUP)
    kept = _without_aliases(headers, story.origin)
    return kept + ([(GROUP, group)] if group is not None else []) + _encoded(told)


def without_details(headers: Headers) -> HeaderList:
    """The same headers without the error's class, rule, text and calls, for a record that is too large with them."""
    return [(name, value) for name, value in headers if name not in DETAILS]


def foreign_headers(headers: Headers) -> HeaderList:
    """The headers that are not ours, in order, with their duplicates."""
    return [(name, value) for name, value in headers if not name.startswith(HEADER_PREFIX)]


def _without_aliases(headers: Headers, origin: Origin) -> HeaderList:
    """The headers that are not ours, less those that the Spring profile added: they say what ours say. What another
    application wrote under the same names says something else, and stays."""
    told = last_values(headers)
    error_class, message, group = ((told.get(name) or b"") for name in (ERROR_CLASS, ERROR_MESSAGE, GROUP))
    aliases = set(spring_aliases(origin, error_class, message, group))
    return [header for header in foreign_headers(headers) if header not in aliases]


def last_values(headers: Headers) -> dict[str, bytes | None]:
    """Our headers; of several with one name, the last."""
    return {name: value for name, value in headers if name.startswith(HEADER_PREFIX)}


def _told(story: Story, failure: Failure, group_id: str, now_ms: int) -> Mapping[str, str]:
    first = story.first_failed_at if story.first_failed_at is not None else now_ms
    told = {FIRST_FAILED_AT: str(first), FAILED_AT: str(now_ms), GROUP: group_id, **_origin(story)}
    if story.redrive_id is not None:
        told |= {REDRIVE_ID: story.redrive_id}
    if story.redrive_count:
        told |= {REDRIVE_COUNT: str(story.redrive_count)}
    if story.redriven_at is not None:
        told |= {REDRIVEN_AT: str(story.redriven_at)}
    told |= {ERROR_CLASS: failure.error_class, ERROR_MESSAGE: failure.message}
    return told | {ERROR_CODE: failure.rule} if failure.rule else told


def _origin(story: Story) -> dict[str, str]:
    """Where the record was first, and in which reading."""
    origin = story.origin
    return {
        ORIGIN_TOPIC: origin.topic,
        ORIGIN_PARTITION: str(origin.partition),
        ORIGIN_OFFSET: str(origin.offset),
        ORIGIN_TIMESTAMP: str(origin.timestamp),
        **({READING: story.reading} if story.reading is not None else {}),
    }


def _encoded(told: Mapping[str, str]) -> HeaderList:
    return [(name, _bytes(text)) for name, text in told.items()]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _here(record: Record) -> Origin:
    return Origin(record.topic, record.partition, record.offset, record.timestamp)


class _Reading:
    """Our headers of one record on their way in; `damaged` turns true when one cannot be used as it stands."""

    def __init__(self, headers: Headers, now_ms: int) -> None:
        self.values = last_values(headers)
        self.damaged = False
        self._now_ms = now_ms

    def number(self, name: str, least: int, most: int) -> int | None:
        """The number, clamped to `most`; None when there is none that can be used."""
        value = self.values.get(name)
        if name not in self.values:
            return None
        number = int(value) if value is not None and _NUMBER.fullmatch(value) else None
        if number is None or number < least:
            self.damaged = True
            return None
        if number > most:
            self.damaged = True
        return min(number, most)

    def time(self, name: str) -> int | None:
        """The time, never later than now; times of other clocks may be a little ahead."""
        time = self.number(name, 0, self._now_ms + SKEW_MS)
        return None if time is None else min(time, self._now_ms)

    def origin(self) -> Origin | None:
        """All of it or nothing: half an origin would point to a record that is another."""
        topic = self._matched(ORIGIN_TOPIC, _TOPIC)
        partition = self.number(ORIGIN_PARTITION, 0, PARTITION_MAX)
        offset = self.number(ORIGIN_OFFSET, 0, NUMBER_MAX)
        timestamp = self.number(ORIGIN_TIMESTAMP, NUMBER_MIN, NUMBER_MAX)
        if topic is None or partition is None or offset is None:
            self.damaged = True
            return None
        return Origin(topic[0].decode(), partition, offset, -1 if timestamp is None else timestamp)

    def policy(self) -> str | None:
        match = self._matched(POLICY, _POLICY)
        return None if match is None else match[1].decode()

    def reading(self) -> str | None:
        match = self._matched(READING, READING_ID)
        return None if match is None else match[0].decode()

    def redrive_id(self) -> str | None:
        match = self._matched(REDRIVE_ID, _REDRIVE_ID)
        return None if match is None else match[0].decode()

    def _matched(self, name: str, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        value = self.values.get(name)
        if name not in self.values:
            return None
        match = pattern.fullmatch(value) if value is not None else None
        if match is None:
            self.damaged = True
        return match
