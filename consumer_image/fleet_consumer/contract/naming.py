"""Names that operator and workers derive alike: managed topics, instance ids, revisions, child objects.

The name of a managed topic is read from its end: the last part is `failed`, `redrive`, or a delay behind `retry`, and
the rest is the group id, dots and all. So no two of (group, kind, delay) have one name. Kafka's groups are not as
clear: the retry group of `a` is also what a group called `a.retry` would be, which claims settle.

Pure: no I/O, no configuration.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

RESERVED_PREFIX: Final = "_fleet."
"""Prefix of managed topics, a group's own retry flow; pattern subscriptions never match them."""

DAY_SECONDS: Final = 86_400
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
"""Units of delays, from the smallest to the largest."""
DELAY: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
DELAY_SECONDS_MAX: Final = 7 * DAY_SECONDS
"""The longest delay: managed topics keep records for at least as long, whatever their policy says."""

UID_CHARACTERS_MAX: Final = 8
"""Characters of an object's uid in an instance id: enough to tell a recreated object from its predecessor."""

HASH_CHARACTERS: Final = 10
"""40 bits of SHA-256: names stay short, and a fleet would need a million revisions for a collision."""


def content_hash(content: Mapping[str, Any]) -> str:
    """Name of a revision: the first characters of the SHA-256 of its content in canonical JSON."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_CHARACTERS]


def failed_topic(group_id: str) -> str:
    """Topic of the records that a group gave up: its dead letter queue (DLQ)."""
    return f"{RESERVED_PREFIX}{group_id}.failed"


def retry_topic(group_id: str, delay: str) -> str:
    """Topic in which a group's records wait for one delay, given in canonical form."""
    return f"{RESERVED_PREFIX}{group_id}.retry.{delay}"


def redrive_topic(group_id: str) -> str:
    """Topic of a group's redriven records; its retry workers read it without delay."""
    return f"{RESERVED_PREFIX}{group_id}.redrive"


def retry_group(group_id: str) -> str:
    """Kafka group of a fleet's retry workers: separate, so that waiting never rebalances the main group."""
    return f"{group_id}.retry"


def redrive_group(group_id: str, uid: str) -> str:
    """Kafka group that stores the progress of one Redrive. It has offsets and no members."""
    return f"{group_id}.redrive.{uid[:UID_CHARACTERS_MAX]}"


def parse_delay(text: str) -> int:
    """Seconds of a delay such as `90s`, `5m`, `1h` or `7d`. Raises ValueError with a message for its author."""
    match = DELAY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no delay; write a whole number and one of s, m, h, d, such as 30s or 5m")
    seconds = int(match[1]) * UNIT_SECONDS[match[2]]
    if seconds > DELAY_SECONDS_MAX:
        raise ValueError(f"{text!r} is too long; the longest delay is {canonical_delay(DELAY_SECONDS_MAX)}")
    return seconds


def canonical_delay(seconds: int) -> str:
    """A delay in the largest unit that divides it, as topics are named: 60s and 1m share one topic.

    Raises ValueError outside of 1 second to 7 days.
    """
    if not 1 <= seconds <= DELAY_SECONDS_MAX:
        raise ValueError(f"a delay of {seconds} s is out of range; it must be from 1 s to {DELAY_SECONDS_MAX} s")
    unit, size = next((unit, size) for unit, size in reversed(UNIT_SECONDS.items()) if seconds % size == 0)
    return f"{seconds // size}{unit}"


def is_canonical_delay(text: str) -> bool:
    """True for a delay in the form that topics use."""
    try:
        return canonical_delay(parse_delay(text)) == text
    except ValueError:
        return False


def is_managed_topic(topic: str) -> bool:
    """True for a topic that Consumer Fleet creates for a group."""
    return topic.startswith(RESERVED_PREFIX)


@runtime_checkable
class TopicPattern(Protocol):
    """A compiled regular expression for names of topics: `re.Pattern[str]`, or `patterns.Pattern` with RE2 behind."""

    def fullmatch(self, text: str, /) -> object | None:
        """A true value if the whole of a name matches, else None."""


def pattern_matches(pattern: TopicPattern, topic: str) -> bool:
    """True if a subscription by pattern includes a topic: the whole name matches, as with Java's `matches()`.

    The brokers' own topics (`__consumer_offsets`) and managed ones never match: `.*` must not feed a group its own
    failures.
    """
    return not topic.startswith(("__", RESERVED_PREFIX)) and pattern.fullmatch(topic) is not None


def instance_id_prefix(namespace: str, name: str, uid: str) -> str:
    """Prefix of every `group.instance.id` of one ConsumerGroup object, and of no other object."""
    return f"{namespace}.{name}.{uid[:UID_CHARACTERS_MAX]}-"


def instance_id(namespace: str, name: str, uid: str, ordinal: int) -> str:
    """`group.instance.id` (KIP-345) of the worker with this StatefulSet ordinal."""
    return f"{instance_id_prefix(namespace, name, uid)}{ordinal}"


def instance_ordinal(prefix: str, instance: str) -> int | None:
    """Ordinal of an instance id that begins with `prefix`; None for any other id."""
    tail = instance.removeprefix(prefix)
    return int(tail) if tail != instance and tail.isascii() and tail.isdigit() else None


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`: 32-bit signed, over UTF-16 code units (a character beyond the BMP counts as two)."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


def coordinator_partition(group_id: str, partitions: int) -> int:
    """Partition of `__consumer_offsets` whose leader coordinates a group (`GroupMetadataManager.partitionFor`).

    Java's `Utils.abs` maps the smallest int to 0, where Python's `abs` would leave 2**31.
    """
    if partitions < 1:
        raise ValueError(f"__consumer_offsets must have at least one partition, got {partitions}")
    hashed = java_string_hash(group_id)
    return (0 if hashed == -0x8000_0000 else abs(hashed)) % partitions


def main_workers(name: str) -> str:
    """StatefulSet, headless Service and PodDisruptionBudget of the main workers.

    As all children of a ConsumerGroup it has `fleet` behind the name: an application `orders` often has objects of that
    very name, and so may a group that is called like a part of another one.
    """
    return f"{name}-fleet"


def retry_workers(name: str) -> str:
    """StatefulSet, headless Service and PodDisruptionBudget of the retry workers."""
    return f"{main_workers(name)}-retry"


def revision_config(name: str, revision: str) -> str:
    """Immutable ConfigMap of one revision's settings and pod template."""
    return f"{main_workers(name)}-{revision}"


def revision_handler(name: str, revision: str) -> str:
    """Immutable ConfigMap of one revision's copy of the handler's source."""
    return f"{main_workers(name)}-{revision}-handler"


def preflight_pod(name: str, revision: str) -> str:
    """Pod that checks a revision once before the fleet changes to it."""
    return f"{main_workers(name)}-check-{revision}"


def retry_config(name: str) -> str:
    """ConfigMap of the policy revisions that a group's workers follow; they read it again when it changes."""
    return f"{main_workers(name)}-retry"


def skip_config(name: str) -> str:
    """ConfigMap of the records that a group's workers pass by; they read it again when it changes."""
    return f"{main_workers(name)}-offsets"


def redrive_job(name: str) -> str:
    return f"{name}-redrive"


def backfill_application(name: str, attempt: int) -> str:
    """SparkApplication of one attempt of a Backfill."""
    return f"{name}-{attempt}"


def backfill_settings(name: str) -> str:
    """ConfigMap of a Backfill's settings."""
    return f"{name}-backfill"


def backfill_handler(name: str) -> str:
    """ConfigMap of the handler's source as it was when the Backfill began."""
    return f"{name}-backfill-handler"


def backfill_candidate(name: str) -> str:
    """ConfigMap of the second handler's source of a comparison, as it was when the Backfill began."""
    return f"{name}-backfill-candidate"


def backfill_ledger(name: str) -> str:
    """ConfigMap in which the driver notes how far it is."""
    return f"{name}-ledger"


def backfill_control(name: str) -> str:
    """ConfigMap by which the operator tells a running driver what has changed."""
    return f"{name}-control"


def backfill_driver(name: str) -> str:
    """ServiceAccount of a Backfill's driver, its Role and its RoleBindings."""
    return f"{name}-driver"
