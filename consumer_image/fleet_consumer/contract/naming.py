"""Names that operator and workers derive in the same way: managed topics, instance ids, revisions, children. Pure
functions.

A managed topic's name is parsed from its end: the last component is `failed`, `redrive`, or a delay after `retry`; the
rest, with its dots, is the group id. So two different combinations of group, kind and delay never share a name. Group
ids can collide: the retry group of `a` has the same id as a group named `a.retry`. Claims resolve this conflict.

ConsumerGroups' names have at most 40 characters, because `<name>-fleet-retry` then has 52. The StatefulSet controller
adds 11 characters to that name for a label, which may have 63.

Decision: docs/decisions/0053-names-and-replicas.md.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

RESERVED_PREFIX: Final = "_fleet."
"""Prefix of managed topics; pattern subscriptions never match them."""

DAY_SECONDS: Final = 86_400
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
"""Units of delays, from the smallest to the largest."""
DELAY: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
DELAY_SECONDS_MAX: Final = 7 * DAY_SECONDS
"""Maximum delay in seconds. Managed topics always keep records for at least this long."""

UID_CHARACTERS_MAX: Final = 8
"""Number of characters of an object's uid that names contain: enough to distinguish a recreated object from its
predecessor."""

HASH_CHARACTERS: Final = 10
"""Hexadecimal digits in a revision's name (40 bits of a SHA-256): a collision is unlikely below a million revisions."""


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the name of a revision: the first digits of the SHA-256 of its content as canonical JSON."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_CHARACTERS]


def failed_topic(group_id: str) -> str:
    """Name of a group's failed topic: its dead letter queue (DLQ)."""
    return f"{RESERVED_PREFIX}{group_id}.failed"


def retry_topic(group_id: str, delay: str) -> str:
    """Name of the topic in which a group's records wait for `delay`, which must be canonical."""
    return f"{RESERVED_PREFIX}{group_id}.retry.{delay}"


def redrive_topic(group_id: str) -> str:
    """Name of the topic with a group's redriven records; retry workers process them without delay."""
    return f"{RESERVED_PREFIX}{group_id}.redrive"


def retry_group(group_id: str) -> str:
    """Id of the retry workers' Kafka group. With a separate group, they never cause rebalances of the main group."""
    return f"{group_id}.retry"


def redrive_group(group_id: str, uid: str) -> str:
    """Id of the Kafka group with the progress of one Redrive. This group has committed offsets but no members."""
    return f"{group_id}.redrive.{uid[:UID_CHARACTERS_MAX]}"


def parse_delay(text: str) -> int:
    """Return the seconds of a delay such as `90s` or `7d`. Raises ValueError with a message for the delay's author."""
    match = DELAY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a delay; write a whole number and one of s, m, h, d, such as 30s or 5m")
    seconds = int(match[1]) * UNIT_SECONDS[match[2]]
    if seconds > DELAY_SECONDS_MAX:
        raise ValueError(f"{text!r} is too long; the longest delay is {canonical_delay(DELAY_SECONDS_MAX)}")
    return seconds


def canonical_delay(seconds: int) -> str:
    """Return a delay in the largest unit that divides it evenly, so that 60s and 1m share a topic. Raises ValueError
    unless `seconds` is from 1 s to 7 days."""
    if not 1 <= seconds <= DELAY_SECONDS_MAX:
        raise ValueError(f"a delay of {seconds} s is out of range; it must be from 1 s to {DELAY_SECONDS_MAX} s")
    unit, size = next((unit, size) for unit, size in reversed(UNIT_SECONDS.items()) if seconds % size == 0)
    return f"{seconds // size}{unit}"


def is_canonical_delay(text: str) -> bool:
    try:
        return canonical_delay(parse_delay(text)) == text
    except ValueError:
        return False


def is_managed_topic(topic: str) -> bool:
    return topic.startswith(RESERVED_PREFIX)


@runtime_checkable
class TopicPattern(Protocol):
    """A compiled regular expression for topic names: `re.Pattern[str]`, or `patterns.Pattern` for RE2."""

    def fullmatch(self, text: str, /) -> object | None:
        """Return a true value if the whole name matches, else None."""


def pattern_matches(pattern: TopicPattern, topic: str) -> bool:
    """Return True if a pattern subscription includes a topic. The whole name must match, as in Java's `matches()`.

    Internal topics (`__consumer_offsets`) and managed topics never match, so that a group with the pattern `.*` does
    not read its own failed records.
    """
    return not topic.startswith(("__", RESERVED_PREFIX)) and pattern.fullmatch(topic) is not None


def instance_id_prefix(namespace: str, name: str, uid: str) -> str:
    """Prefix of all `group.instance.id` values of one ConsumerGroup object; no other object has the same prefix."""
    return f"{namespace}.{name}.{uid[:UID_CHARACTERS_MAX]}-"


def instance_id(namespace: str, name: str, uid: str, ordinal: int) -> str:
    """`group.instance.id` (KIP-345) of the worker with this StatefulSet ordinal."""
    return f"{instance_id_prefix(namespace, name, uid)}{ordinal}"


def instance_ordinal(prefix: str, instance: str) -> int | None:
    """StatefulSet ordinal in an instance id that begins with `prefix`; None for any other id."""
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
    """Partition of `__consumer_offsets` whose leader coordinates a group (`GroupMetadataManager.partitionFor`). Java's
    `Utils.abs` maps the smallest int to 0, whereas Python's `abs` returns 2**31."""
    if partitions < 1:
        raise ValueError(f"__consumer_offsets must have at least one partition, got {partitions}")
    hashed = java_string_hash(group_id)
    return (0 if hashed == -0x8000_0000 else abs(hashed)) % partitions


def main_workers(name: str) -> str:
    """Name of the StatefulSet, headless Service and PodDisruptionBudget of the main workers.

    All names of a ConsumerGroup's children have `-fleet` after the group's name. Without it, a child could have the
    name of another group, or of an object of the application, such as `orders`.
    """
    return f"{name}-fleet"


def retry_workers(name: str) -> str:
    """Name of the StatefulSet, headless Service and PodDisruptionBudget of the retry workers."""
    return f"{main_workers(name)}-retry"


def revision_config(name: str, revision: str) -> str:
    """Name of the immutable ConfigMap with a revision's settings and pod template."""
    return f"{main_workers(name)}-{revision}"


def revision_handler(name: str, revision: str) -> str:
    """Name of the immutable ConfigMap with a revision's copy of the handler's source."""
    return f"{main_workers(name)}-{revision}-handler"


def preflight_pod(name: str, revision: str) -> str:
    return f"{main_workers(name)}-check-{revision}"


def retry_config(name: str) -> str:
    """Name of the ConfigMap with the policy revisions of a group's workers, which reload it when it changes."""
    return f"{main_workers(name)}-retry"


def skip_config(name: str) -> str:
    """Name of the ConfigMap with the records to skip; a group's workers reload it when it changes."""
    return f"{main_workers(name)}-offsets"


def redrive_job(name: str) -> str:
    return f"{name}-redrive"


def backfill_application(name: str, attempt: int) -> str:
    """Name of the SparkApplication of one attempt of a Backfill."""
    return f"{name}-{attempt}"


def backfill_settings(name: str) -> str:
    """Name of the ConfigMap with a Backfill's settings."""
    return f"{name}-backfill"


def backfill_handler(name: str) -> str:
    """Name of the ConfigMap with the handler's source, copied when the Backfill started."""
    return f"{name}-backfill-handler"


def backfill_candidate(name: str) -> str:
    """Name of the ConfigMap with the source of a comparison's second handler, copied when the Backfill started."""
    return f"{name}-backfill-candidate"


def backfill_ledger(name: str) -> str:
    """Name of the ConfigMap in which the driver records its progress."""
    return f"{name}-ledger"


def backfill_control(name: str) -> str:
    """Name of the ConfigMap with the operator's instructions to a running driver."""
    return f"{name}-control"


def backfill_driver(name: str) -> str:
    """Name of the ServiceAccount, Role and RoleBindings of a Backfill's driver."""
    return f"{name}-driver"
