"""Roles of a fleet's workers (`--role`), which share image, settings and handler.

Imports nothing heavy: the command line needs the roles before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fleet_consumer.contract import naming


class Role(StrEnum):
    """`MAIN` reads the source topics, `RETRY` the retry and redrive topics in a Kafka group of its own."""

    MAIN = "main"
    RETRY = "retry"


RETRY_POLL_RECORDS: Final = 100
"""Largest poll of a retry worker. Records behind one that is not due are read again later."""

RETRY_PREFETCH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "queued.min.messages": "100",
        "queued.max.messages.kbytes": "1024",
        "fetch.message.max.bytes": "262144",
        # Per response: with hundreds of partitions the limit per partition does not bound the sum.
        "fetch.max.bytes": "4194304",
    }
)
"""Prefetch limits of a retry worker. A larger record is still fetched, alone (KIP-74)."""

RETRY_PREFETCH_ALIASES: Final = frozenset({"max.partition.fetch.bytes"})
"""Aliases of these settings in librdkafka; of two aliases the later one would win."""


def consumer_group(role: Role, group_id: str) -> str:
    """Kafka group of a fleet's workers of this role."""
    return naming.retry_group(group_id) if role is Role.RETRY else group_id


def retry_topics(group_id: str, delays: tuple[str, ...]) -> tuple[str, ...]:
    """Topics of retry workers: one for each delay, and the redrive topic."""
    return (*(naming.retry_topic(group_id, delay) for delay in delays), naming.redrive_topic(group_id))
