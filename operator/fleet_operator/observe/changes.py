"""Finds the differences between two observations that require an action. Pure.

Differences are computed on the observer's thread, so that the event loop handles only the few groups that have changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.lag import lag_bucket
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, RetryObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A new observation and its changes.

    - `seconds`: duration of the poll; None for a state poll.
    - `cluster`: True if facts about the cluster itself have changed. `lost`: True if the cluster became unreachable, or
      is unreachable for a different reason than before.
    - `groups`: the groups that have changed; the value is False if only offsets have changed.
    """

    observation: ClusterObservation
    seconds: float | None = None
    cluster: bool = False
    lost: bool = False
    groups: Mapping[str, bool] = field(default_factory=dict)


def compare(
    before: ClusterObservation | None,
    after: ClusterObservation,
    polled: Mapping[str, GroupSubscription],
    seconds: float | None,
    *,
    first: Iterable[str] = (),
) -> Observed:
    """Find the changes from observation `before` to observation `after`. Only the `polled` groups are compared; the
    groups in `first` count as changed in any case. `seconds`: duration of the poll.

    An unconfirmed outage does not count as a change: it is recorded in the observation, but the listener is not
    notified.
    """
    if after.unconfirmed:
        return Observed(observation=after, seconds=seconds)
    turned = before is None or (before.reachable, before.reason) != (after.reachable, after.reason)
    groups: Mapping[str, bool] = {}
    if after.reachable:
        found = dict.fromkeys(polled, True) if before is None else _groups(before, after, polled.values())
        groups = {**found, **dict.fromkeys(first, True)}
    return Observed(
        observation=after,
        seconds=seconds,
        cluster=turned or _facts(before) != _facts(after),
        lost=turned and not after.reachable,
        groups=groups,
    )


def _groups(
    before: ClusterObservation, after: ClusterObservation, polled: Iterable[GroupSubscription]
) -> dict[str, bool]:
    changed: dict[str, bool] = {}
    same_topics = before.topics is after.topics and before.matches is after.matches
    for subscription in polled:
        old, new = before.groups.get(subscription.group_id), after.groups.get(subscription.group_id)
        if not same_topics and _topics(before, subscription) != _topics(after, subscription):
            changed[subscription.group_id] = True
        elif new is None or new is old:
            continue
        elif (urgent := differs(old, new)) or moved(old, new):
            changed[subscription.group_id] = urgent
    return changed


def _facts(seen: ClusterObservation | None) -> tuple[object, ...] | None:
    """The facts that a KafkaCluster's status shows, except times."""
    if seen is None:
        return None
    return (
        seen.cluster_id,
        seen.brokers,
        seen.offsets_topic,
        seen.offsets_topic_error,
        dict(seen.broker_settings),
        seen.silent_brokers,
        seen.group_count,
        dict(seen.groups_per_coordinator),
    )


def _topics(seen: ClusterObservation, subscription: GroupSubscription) -> list[object]:
    matching = seen.matches.get(subscription.pattern.text, ()) if subscription.pattern else ()
    return [(topic, seen.topics.get(topic)) for topic in (*subscription.named_topics, *matching)]


def differs(before: GroupObservation | None, after: GroupObservation) -> bool:
    """True if anything except offsets has changed."""
    return before is None or _shape(before) != _shape(after)


def _shape(group: GroupObservation) -> tuple[object, ...]:
    error = None if group.unconfirmed else group.error
    shape = group.state, group.assignor, group.coordinator_id, group.members, group.transitions, group.may_read, error
    hanging = {key: (each.offset, lag_bucket(each.end_offset - each.offset)) for key, each in group.hanging.items()}
    return (*shape, hanging) if group.retry is None else (*shape, hanging, *_retry_shape(group.retry))


def _retry_shape(retry: RetryObservation) -> tuple[object, ...]:
    """The urgent facts of a retry flow. If the flow has no workers, it is also urgent that records wait or are due.
    With workers, the numbers of these records change at every poll and are treated like lag."""
    unattended = () if retry.members else (retry.waiting and 1, retry.due_lag and 1)
    topics = {name: (topic.partitions, topic.configs, topic.error) for name, topic in retry.topics.items()}
    return (
        retry.state,
        retry.members,
        retry.error,
        retry.source_max_message_bytes,
        retry.found_delays,
        topics,
        retry.expired,
        unattended,
    )


def moved(before: GroupObservation | None, after: GroupObservation) -> bool:
    """True if anything about a group's offsets has changed:

    - committed offsets or log end offsets,
    - the partitions whose commit is beyond the log end, or whose log end is unknown,
    - the numbers of waiting and due records in the retry flow.
    """
    if before is None or before.beyond_end != after.beyond_end or before.missing_ends != after.missing_ends:
        return True
    if (before.committed, before.end_offsets) != (after.committed, after.end_offsets):
        return True
    return counts_of(before.retry) != counts_of(after.retry)


def counts_of(retry: RetryObservation | None) -> tuple[object, ...] | None:
    """The facts of a retry flow that determine the number of retry workers."""
    return (retry.waiting, retry.due_lag, retry.oldest_due_at, retry.next_due_at) if retry is not None else None
