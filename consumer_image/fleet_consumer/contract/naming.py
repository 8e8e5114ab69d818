"""Names that the operator and the workers must agree on: managed topics, instance ids, child objects.

Both sides derive them from the same few inputs, so they live in one pure module at the bottom of both packages.
Nothing here may do I/O or know a configuration.
"""

from __future__ import annotations

import re
from typing import Final, Protocol, runtime_checkable

RESERVED_PREFIX: Final = "_fleet."
"""Topics with this prefix belong to a group's own retry flow; pattern subscriptions never match them."""

UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""The units of delays, from the smallest to the largest."""
DELAY: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
DELAY_SECONDS_MAX: Final = 7 * 86_400
"""The longest delay: managed topics keep records for at least as long, whatever else their policy says."""

UID_CHARACTERS_MAX: Final = 8
"""How much of an object's uid an instance id carries: enough to tell a recreated object from its predecessor."""


def failed_topic(group_id: str) -> str:
    """The topic that takes the records a group has given up on."""
    return f"{RESERVED_PREFIX}{group_id}.failed"


def retry_topic(group_id: str, delay: str) -> str:
    """The topic in which a group's records wait for one delay, which is given in its canonical form."""
    return f"{RESERVED_PREFIX}{group_id}.retry.{delay}"


def redrive_topic(group_id: str) -> str:
    """The topic through which failed records come back to a group: its retry workers read it without any delay."""
    return f"{RESERVED_PREFIX}{group_id}.redrive"


def retry_group(group_id: str) -> str:
    """The Kafka group of a fleet's retry workers: apart from the main one, so that waiting never rebalances it."""
    return f"{group_id}.retry"


def redrive_group(group_id: str, uid: str) -> str:
    """The Kafka group in which one Redrive keeps how far it has come. It has no members, only offsets."""
    return f"{group_id}.redrive.{uid[:UID_CHARACTERS_MAX]}"


def parse_delay(text: str) -> int:
    """The seconds in a delay such as `90s`, `5m`, `1h` or `7d`. Raises ValueError with a message for its author."""
    match = DELAY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no delay; write a whole number and one of s, m, h, d, such as 30s or 5m")
    seconds = int(match[1]) * UNIT_SECONDS[match[2]]
    if seconds > DELAY_SECONDS_MAX:
        raise ValueError(f"{text!r} is too long; the longest delay is {canonical_delay(DELAY_SECONDS_MAX)}")
    return seconds


def canonical_delay(seconds: int) -> str:
    """The one way in which topics name a delay: in the largest unit that divides it, so that 60s and 1m are one topic.

    Raises ValueError outside of 1 second to 7 days.
    """
    if not 1 <= seconds <= DELAY_SECONDS_MAX:
        raise ValueError(f"a delay of {seconds} s is out of range; it must be from 1 s to {DELAY_SECONDS_MAX} s")
    unit, size = next((unit, size) for unit, size in reversed(UNIT_SECONDS.items()) if seconds % size == 0)
    return f"{seconds // size}{unit}"


def is_managed_topic(topic: str) -> bool:
    """Whether a topic is one that Consumer Fleet makes for a group."""
    return topic.startswith(RESERVED_PREFIX)


def is_internal_topic(topic: str) -> bool:
    """Whether a topic belongs to the brokers themselves, such as `__consumer_offsets`."""
    return topic.startswith("__")


@runtime_checkable
class TopicPattern(Protocol):
    """A compiled regular expression for names of topics: `re.Pattern[str]`, or `patterns.Pattern` with RE2 behind."""

    def fullmatch(self, text: str, /) -> object | None:
        """A true value if the whole of a name matches, else None."""
        ...


def pattern_matches(pattern: TopicPattern, topic: str) -> bool:
    """Whether a subscription by pattern takes a topic in: the whole name matches, as with Java's `matches()`.

    Internal and managed topics never match, whatever the pattern says: `.*` must not feed a group its own failures.
    """
    return not is_internal_topic(topic) and not is_managed_topic(topic) and pattern.fullmatch(topic) is not None


def instance_id_prefix(namespace: str, name: str, uid: str) -> str:
    """What every `group.instance.id` of one ConsumerGroup object begins with, and no other object's does."""
    return f"{namespace}.{name}.{uid[:UID_CHARACTERS_MAX]}-"


def instance_id(namespace: str, name: str, uid: str, ordinal: int) -> str:
    """The `group.instance.id` (KIP-345) of the worker with this StatefulSet ordinal."""
    return f"{instance_id_prefix(namespace, name, uid)}{ordinal}"


def instance_ordinal(prefix: str, instance: str) -> int | None:
    """The ordinal in an instance id that begins with `prefix`, or None when the id is somebody else's."""
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
    """The partition of `__consumer_offsets` whose leader coordinates a group (`GroupMetadataManager.partitionFor`).

    Java's `Utils.abs` maps the smallest int to 0, where Python's `abs` would leave 2**31.
    """
    if partitions < 1:
        raise ValueError(f"__consumer_offsets must have at least one partition, got {partitions}")
    hashed = java_string_hash(group_id)
    return (0 if hashed == -0x8000_0000 else abs(hashed)) % partitions


def stateful_set(name: str) -> str:
    """The StatefulSet of a ConsumerGroup's workers."""
    return name


def headless_service(name: str) -> str:
    """The headless Service that gives each worker its DNS name."""
    return name


def disruption_budget(name: str) -> str:
    """The PodDisruptionBudget of a ConsumerGroup's workers."""
    return name


def revision_config(name: str, revision: str) -> str:
    """The immutable ConfigMap that holds one revision's settings and pod template."""
    return f"{name}-{revision}"


def revision_handler(name: str, revision: str) -> str:
    """The immutable ConfigMap that holds one revision's copy of the handler's source."""
    return f"{name}-{revision}-handler"


def preflight_pod(name: str, revision: str) -> str:
    """The one-shot Pod that checks a revision before the fleet changes to it."""
    return f"{name}-check-{revision}"


def retry_stateful_set(name: str) -> str:
    """The StatefulSet of a ConsumerGroup's retry workers."""
    return f"{name}-retry"


def retry_headless_service(name: str) -> str:
    """The headless Service of the retry workers."""
    return f"{name}-retry"


def retry_disruption_budget(name: str) -> str:
    """The PodDisruptionBudget of the retry workers."""
    return f"{name}-retry"


def retry_config(name: str) -> str:
    """The ConfigMap with the policy revisions that a group's workers may need; they read it again when it changes."""
    return f"{name}-retry"


def redrive_job(name: str) -> str:
    """The Job of a Redrive."""
    return f"{name}-redrive"
