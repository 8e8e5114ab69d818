"""Differences between two observations, as far as somebody acts on them. Pure.

They are found on the observer's thread: of thousands of groups a few have changed, and the event loop hears of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fleet_operator.observe.interests import GroupInterest
from fleet_operator.planning.lag import lag_bucket
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, RetryObservation

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A new observation and what is different in it.

    - `seconds`: the time that the poll took; None for a state poll.
    - `cluster`: the facts of the cluster itself have changed; `lost`: it is not reachable (any more), or for another
      reason.
    - `groups`: the groups that have changed; False where no more than offsets has.
    """

    observation: ClusterObservation
    seconds: float | None = None
    cluster: bool = False
    lost: bool = False
    groups: Mapping[str, bool] = field(default_factory=dict)


def compare(
    before: ClusterObservation | None,
    after: ClusterObservation,
    looked_at: Mapping[str, GroupInterest],
    seconds: float | None,
    *,
    first: bool = False,
) -> Observed:
    """Find the changes in an observation, given the groups that were polled, for the `first` time or not.

    A poll or two that failed are no change yet: whoever reads finds the observation, and nobody is woken up.
    """
    if after.doubtful:
        return Observed(observation=after, seconds=seconds)
    turned = before is None or (before.reachable, before.reason) != (after.reachable, after.reason)
    groups: Mapping[str, bool] = {}
    if after.reachable:
        groups = (
            dict.fromkeys(looked_at, True) if first or before is None else _groups(before, after, looked_at.values())
        )
    return Observed(
        observation=after,
        seconds=seconds,
        cluster=turned or _facts(before) != _facts(after),
        lost=turned and not after.reachable,
        groups=groups,
    )


def earlier(now: Mapping[str, T], *before: Mapping[str, T]) -> dict[str, T]:
    """Earlier values of what is compared: of several that somebody may have read, one that is not the present one."""
    found: dict[str, T] = {}
    for name, value in now.items():
        known = [values[name] for values in before if name in values]
        if len(known) == len(before):
            found[name] = next((each for each in known if each != value), value)
    return found


def _groups(
    before: ClusterObservation, after: ClusterObservation, looked_at: Iterable[GroupInterest]
) -> dict[str, bool]:
    changed: dict[str, bool] = {}
    same_topics = before.topics is after.topics and before.matches is after.matches
    for interest in looked_at:
        old, new = before.groups.get(interest.group_id), after.groups.get(interest.group_id)
        if not same_topics and _topics(before, interest) != _topics(after, interest):
            changed[interest.group_id] = True
        elif new is None or new is old:
            continue
        elif (urgent := differs(old, new)) or moved(old, new):
            changed[interest.group_id] = urgent
    return changed


def _facts(seen: ClusterObservation | None) -> tuple[object, ...] | None:
    """The facts in the status of a KafkaCluster, apart from times."""
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


def _topics(seen: ClusterObservation, interest: GroupInterest) -> list[object]:
    matching = seen.matches.get(interest.pattern.text, ()) if interest.pattern else ()
    return [(topic, seen.topics.get(topic)) for topic in (*interest.named_topics, *matching)]


def differs(before: GroupObservation | None, after: GroupObservation) -> bool:
    """True if more than offsets has changed."""
    return before is None or _shape(before) != _shape(after)


def _shape(group: GroupObservation) -> tuple[object, ...]:
    error = None if group.doubtful else group.error
    shape = group.state, group.assignor, group.coordinator_id, group.members, group.transitions, group.may_read, error
    hanging = {key: (of.offset, lag_bucket(of.end_offset - of.offset)) for key, of in group.hanging.items()}
    return (*shape, hanging) if group.retry is None else (*shape, hanging, *_retry_shape(group.retry))


def _retry_shape(retry: RetryObservation) -> tuple[object, ...]:
    """The urgent facts. Waiting or due records are urgent only where no worker is there to handle them; otherwise they
    change with every poll, and matter no more than lag."""
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
    """True if committed or end offsets have moved, a commit beyond the end of its log has become old, or the end of one
    has been missing for long."""
    if before is None or before.beyond_end != after.beyond_end or before.missing_ends != after.missing_ends:
        return True
    if (before.committed, before.end_offsets) != (after.committed, after.end_offsets):
        return True
    return counts_of(before.retry) != counts_of(after.retry)


def counts_of(retry: RetryObservation | None) -> tuple[object, ...] | None:
    """The counts of a retry flow, by which its workers are scaled."""
    return (retry.waiting, retry.due_lag, retry.oldest_due_at, retry.next_due_at) if retry is not None else None
