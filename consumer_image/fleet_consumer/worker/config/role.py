"""The two kinds of workers of one fleet, told apart by `--role`: the same image, settings and handler for both.

Imports nothing heavy: the command line knows the roles before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fleet_consumer.contract import naming


class Role(StrEnum):
    """`MAIN` reads the source topics, `RETRY` the group's own retry and redrive topics, in a group beside it."""

    MAIN = "main"
    RETRY = "retry"


RETRY_POLL_RECORDS: Final = 100
"""The largest poll of a retry worker. What lies behind a record that is not due is read again later."""

RETRY_PREFETCH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "queued.min.messages": "100",
        "queued.max.messages.kbytes": "1024",
        "fetch.message.max.bytes": "262144",
        # Of one answer: with hundreds of partitions the limit of each is none for all together.
        "fetch.max.bytes": "4194304",
    }
)
"""How little a retry worker reads ahead. A record that is larger than that is still fetched, alone (KIP-74)."""

RETRY_PREFETCH_ALIASES: Final = frozenset({"max.partition.fetch.bytes"})
"""Other names of the same settings; given beside ours, the later one would win."""


def consumer_group(role: Role, group_id: str) -> str:
    """The Kafka group of a fleet's workers of this role."""
    return naming.retry_group(group_id) if role is Role.RETRY else group_id


def retry_topics(group_id: str, delays: tuple[str, ...]) -> tuple[str, ...]:
    """What retry workers consume: a topic for each delay, and that of redriven records."""
    return (*(naming.retry_topic(group_id, delay) for delay in delays), naming.redrive_topic(group_id))
