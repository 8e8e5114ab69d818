"""Roles of a fleet's workers (`--role`), which share image, settings and handler.

Imports nothing heavy: the command line needs the roles before anything is loaded.
"""

from __future__ import annotations

from enum import StrEnum

from fleet_consumer.contract import naming


class Role(StrEnum):
    """`MAIN` reads the source topics, `RETRY` the retry and redrive topics in a Kafka group of its own."""

    MAIN = "main"
    RETRY = "retry"


def consumer_group(role: Role, group_id: str) -> str:
    """Kafka group of a fleet's workers of this role."""
    return naming.retry_group(group_id) if role is Role.RETRY else group_id


def retry_topics(group_id: str, delays: tuple[str, ...]) -> tuple[str, ...]:
    """Topics of retry workers: one for each delay, and the redrive topic."""
    return (*(naming.retry_topic(group_id, delay) for delay in delays), naming.redrive_topic(group_id))
