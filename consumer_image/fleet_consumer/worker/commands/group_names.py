"""The Kafka groups of a cluster by name: an answer of nothing must not hide that a group's name is wrong."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection

from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.naming import RESERVED_PREFIX, failed_topic
from fleet_consumer.group.errors import TopicMissing
from fleet_consumer.net import NetError, NetworkClient
from fleet_consumer.wire.groups import ListGroupsRequest
from fleet_consumer.worker.config.settings import connection_settings

SIMILAR_MAX = 3


def known_groups(brokers: Brokers, timeout_s: float) -> set[str] | None:
    """All groups that the principal may describe; None where a broker does not tell its own."""
    client = NetworkClient(connection_settings(brokers, "fleet-consumer-groups"))
    try:
        client.metadata(timeout_s=timeout_s)
        answers = [
            client.call(address, ListGroupsRequest(), timeout_s=timeout_s) for address in client.brokers.values()
        ]
    except NetError:
        return None
    finally:
        client.close()
    if any(answer.error_code for answer in answers):
        return None
    return {group.group_id for answer in answers for group in answer.groups}


def no_group(name: str, known: Collection[str]) -> str:
    """The sentence for a group that Kafka does not have, with the names that are most like its own."""
    similar = difflib.get_close_matches(name, known, n=SIMILAR_MAX)
    named = f" such as {', '.join(map(repr, similar))}" if similar else ""
    return f"Kafka has no group {name!r} that these credentials may see; it has {len(known)} others{named}"


def tell_unfailed(missing: TopicMissing, brokers: Brokers, topic: str, timeout_s: float) -> None:
    """Say that a group has no failed topic, as none of its records has failed. Raises TopicMissing where its name, or
    that of the topic, is wrong."""
    group = topic.removeprefix(RESERVED_PREFIX).removesuffix(".failed")
    known = known_groups(brokers, timeout_s) if failed_topic(group) == topic else None
    if known is None:
        raise missing
    if group not in known:
        raise TopicMissing(f"{missing}. {no_group(group, known)}") from missing
    print(f"group {group!r} has no failed topic: none of its records has failed", file=sys.stderr)
