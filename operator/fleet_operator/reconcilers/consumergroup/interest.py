"""The observer's orders for a group: its Kafka groups, topics and retry flow."""

from __future__ import annotations

from fleet_consumer.contract import naming
from fleet_consumer.contract.patterns import Pattern
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.observe.interests import GroupInterest, RetryInterest, retry_interest
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.topic_pattern import PatternRefused, group_pattern
from fleet_operator.reconcilers.consumergroup.gather import Gathered


def interest_of(gathered: Gathered, retry: RetryIntent | None) -> GroupInterest:
    """The interest of a group with these retries."""
    group, waits = gathered.group, gathered.older is not None
    return GroupInterest(
        group_id=group.group_id,
        topics=group.source_topics,
        pattern=_pattern(group),
        other_topics=group.spec.handler.outputs,
        failed_topic=naming.failed_topic(group.group_id),
        read_committed=group.spec.consumer.isolation_level == "ReadCommitted",
        expects_members=group.wanted_replicas > 0,
        retry=_retry_interest(group, retry, discover=not waits and gathered.published is None),
        waits=waits,
    )


def _retry_interest(group: ConsumerGroup, retry: RetryIntent | None, *, discover: bool) -> RetryInterest | None:
    """The retry flow with all of its delays, once any is known."""
    delays = (*retry.delays, *retry.drained_delays) if retry is not None else ()
    return retry_interest(group.group_id, delays, discover=discover) if delays else None


def _pattern(group: ConsumerGroup) -> Pattern | None:
    """The topic pattern; a refused one matches nothing, and a condition reports it."""
    try:
        return group_pattern(group)
    except PatternRefused:
        return None
