"""Roles of a fleet's workers (`--role`), which share image, settings and handler.

This module imports nothing heavy, because the command line needs the roles first.
"""

from enum import StrEnum

from fleet_consumer.contract import naming


class Role(StrEnum):
    """`MAIN` reads the source topics, `RETRY` the retry and redrive topics, as a member of a separate Kafka group."""

    MAIN = "main"
    RETRY = "retry"


def consumer_group(role: Role, group_id: str) -> str:
    return naming.retry_group(group_id) if role is Role.RETRY else group_id


def retry_topics(group_id: str, delays: tuple[str, ...]) -> tuple[str, ...]:
    """Return the topics of retry workers: one retry topic per delay, and the redrive topic."""
    return (*(naming.retry_topic(group_id, delay) for delay in delays), naming.redrive_topic(group_id))
