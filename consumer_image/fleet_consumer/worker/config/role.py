"""Roles of a fleet's workers (`--role`). Workers of both roles have the same image, settings and handler.

This module imports no slow modules, because the command line imports it before `--help` is printed.
"""

from enum import StrEnum

from fleet_consumer.contract import naming


class Role(StrEnum):
    """`MAIN` workers read the source topics. `RETRY` workers read the retry and redrive topics, in a separate Kafka
    group."""

    MAIN = "main"
    RETRY = "retry"


def consumer_group(role: Role, group_id: str) -> str:
    return naming.retry_group(group_id) if role is Role.RETRY else group_id


def retry_topics(group_id: str, delays: tuple[str, ...]) -> tuple[str, ...]:
    """Return the topics that retry workers read: one retry topic per delay, and the redrive topic."""
    return (*(naming.retry_topic(group_id, delay) for delay in delays), naming.redrive_topic(group_id))
