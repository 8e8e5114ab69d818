"""What the observer saw on a Kafka cluster, as values handed to the planners.

Made by `observe`, read by `planning`; both sides share nothing else. A value that could not be asked is None (or absent
from its mapping), never zero. All times are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning import times

UNKNOWN_STATE: Final = "Unknown"
"""The state of a group that could not be asked: a state of its own, never Kafka's `Dead` or `Empty`."""


class OffsetSample(NamedTuple):
    """An end offset and the time at which it was read: from two of them follows when an offset was produced."""

    at: float
    end_offset: int


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One live broker as Metadata names it."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopicInfo:
    """`__consumer_offsets` as it is; `cleanup_policy` and `segment_bytes` are None when we may not read them."""

    partitions: int
    replication_factor: int
    cleanup_policy: str | None = None
    segment_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObservation:
    """One topic; `error` is the reason word when it cannot be used (`TopicNotFound`, `AuthorizationFailed`, …).

    `topic_id` tells it from an earlier topic of the same name; None from brokers before Kafka 2.8, which have none.
    """

    partitions: int
    error: str | None = None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberObservation:
    """One member as DescribeGroups tells it; `partitions` is empty unless the group is Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedTopic:
    """One of a group's retry, redrive and failed topics.

    `configs` holds the settings that matter to us as the brokers tell them (defaults too), None while nobody could
    tell. `waiting` counts the records that the retry workers have not committed: 0 for a topic that does not exist,
    None when it could not be asked, and for the failed topic, which nobody reads. `error` is the reason word when the
    topic cannot be used (`TopicNotFound`, `AuthorizationFailed`, …).
    """

    partitions: int = 0
    configs: Mapping[str, str] | None = None
    waiting: int | None = None
    error: str | None = None

    @property
    def usable(self) -> bool:
        """Whether records can be written to it."""
        return self.error is None and self.partitions > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryObservation:
    """A group's retry flow at one time.

    `state` and `members` are those of the Kafka group of the retry workers. `waiting` counts the records in all retry
    topics and the redrive topic that it has not committed, `due_lag` those of them whose time has come: append time
    plus the topic's delay. `oldest_due_at` is when the oldest of these became due (while that is still being searched,
    a time at which it was due already), None when none is due. `next_due_at` is when the next record becomes due, None
    when none waits. What could not be asked is None, and `error` is the reason word then; `counted` tells the two
    meanings of None apart for the times. `source_max_message_bytes` is the largest `max.message.bytes` of the source
    topics. `found_delays` are the delays of all retry topics that the group has on the cluster, None unless that was
    asked for.
    """

    observed_at: float
    state: str = UNKNOWN_STATE
    members: tuple[MemberObservation, ...] = ()
    waiting: int | None = None
    due_lag: int | None = None
    oldest_due_at: float | None = None
    next_due_at: float | None = None
    topics: Mapping[str, ManagedTopic] = field(default_factory=dict)
    source_max_message_bytes: int | None = None
    found_delays: tuple[str, ...] | None = None
    error: str | None = None

    @property
    def counted(self) -> bool:
        """Whether every partition of the flow could be asked, so that a time which is None means "none"."""
        return self.waiting is not None and self.due_lag is not None

    @property
    def drained_topics(self) -> frozenset[str]:
        """The topics that hold no record which the retry workers have yet to handle."""
        return frozenset(name for name, topic in self.topics.items() if topic.waiting == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObservation:
    """One group at one time.

    `state` is Kafka's word. `committed` lacks partitions without a commit; `end_offsets` and `log_starts` lack
    partitions that could not be asked. `end_history` holds a few earlier end offsets of each partition, oldest first,
    for the estimate of how far behind the group is. `failed_records` counts what the failed topic holds now,
    `failed_end` is the sum of its end offsets; both are None unless every partition of it could be asked.
    `error` is the reason word when this group alone could not be asked; the other fields are then the last known ones.
    `failing_since` is the first of the looks in a row that had an error, None for a group that was never asked well;
    `doubtful` says that this is not long ago. `retry` is None for a group without a retry flow.
    """

    group_id: str
    observed_at: float
    state: str = UNKNOWN_STATE
    protocol_type: str = ""
    assignor: str = ""
    coordinator_id: int | None = None
    members: tuple[MemberObservation, ...] = ()
    committed: Mapping[tuple[str, int], int] = field(default_factory=dict)
    end_offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    log_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    end_history: Mapping[tuple[str, int], tuple[OffsetSample, ...]] = field(default_factory=dict)
    failed_records: int | None = None
    failed_end: int | None = None
    error: str | None = None
    failing_since: float | None = None
    doubtful: bool = False
    retry: RetryObservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObservation:
    """One look at a Kafka cluster and at all groups that the operator cares for.

    `observed_at` is the time of this attempt, good or not; `last_good_at` that of the newest good one, whose values
    the other fields keep while `reachable` is False. `reachable_since` is the first good look after the last bad one
    (or after the observer's start). `reason` and `message` explain an unreachable cluster; `doubtful` says that only a
    look or two have failed so far. `answered` has the addresses of the brokers that answered with our credentials.
    `matches` are the names that each pattern takes in, by its text. `group_count` is the number of all groups of the
    cluster; `groups_per_coordinator` says how many each broker coordinates.
    `broker_offsets_partitions` is the brokers' own `offsets.topic.num.partitions`, `offsets_retention_s` for how long
    they keep the commits of a group without members; each is None when we may not read it.
    """

    observed_at: float
    reachable: bool
    reason: str = ""
    message: str = ""
    doubtful: bool = False
    cluster_id: str | None = None
    brokers: tuple[BrokerInfo, ...] = ()
    answered: tuple[str, ...] = ()
    metadata_version: int | None = None
    offsets_topic: OffsetsTopicInfo | None = None
    broker_offsets_partitions: int | None = None
    offsets_retention_s: float | None = None
    groups: Mapping[str, GroupObservation] = field(default_factory=dict)
    topics: Mapping[str, TopicObservation] = field(default_factory=dict)
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_count: int = 0
    groups_per_coordinator: Mapping[int, int] = field(default_factory=dict)
    last_good_at: float | None = None
    reachable_since: float | None = None


STALE_LOOKS: Final = 6
STALE_LEAST_S: Final = 60.0
"""A look that failed says so itself; one that is this many intervals late, and at least a minute, never ended."""


def as_of(observation: ClusterObservation | None, *, interval_s: float, now: float) -> ClusterObservation | None:
    """The observation, or the same as unreachable once it is so old that its observer must be hanging.

    The message tells the time of the last look and not its age, so that it stays the same while nothing happens.
    """
    if observation is None or not (observation.reachable or observation.doubtful):
        return observation
    if now - observation.observed_at <= max(STALE_LEAST_S, STALE_LOOKS * interval_s):
        return observation
    message = f"the last look at the cluster was at {times.to_text(observation.observed_at)}; see the operator's log"
    return replace(observation, reachable=False, doubtful=False, reason=conditions.OBSERVATION_STALE, message=message)


def believed(observation: ClusterObservation | None, group_id: str | None = None) -> ClusterObservation | None:
    """The observation as people are shown it: what a look or two could not ask is taken to be as it was last seen.

    One lost connection would otherwise rewrite the status of every group of the cluster, and again when it is back.
    Decisions are made from the observation itself: nothing is done on what is only believed.
    """
    if observation is None:
        return None
    if observation.doubtful:
        observation = replace(observation, reachable=True, reason="", message="", doubtful=False)
    group = observation.groups.get(group_id) if group_id is not None else None
    if group is None or not group.doubtful:
        return observation
    return replace(
        observation, groups={**observation.groups, group.group_id: replace(group, error=None, doubtful=False)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPartition:
    """A record that a worker cannot get past; `since` in epoch seconds, `reason` and `message` as the worker gave
    them."""

    topic: str
    partition: int
    offset: int
    since: float
    reason: str = ""
    message: str = ""


CLOSED: Final = "Closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerObservation:
    """A worker's failure budget: `state` is Closed, Open or HalfOpen, `since` when it became so.

    The share of failures moves all the time and is no news, so it does not make two of these differ.
    """

    state: str = CLOSED
    since: float | None = None
    failure_percent: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObservation:
    """One worker's own account of its membership, read from its `/member` endpoint.

    `error_…` is what keeps it from its work now; `ended_…` the error that ended its last session, told until a session
    has lived for a while. The count of such sessions is no news and not read. `failed` are the records that it has
    given up since its process began, by reason and class of the error, in powers of two.
    """

    pod: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    leader: bool = False
    assignor: str = ""
    state: str = ""
    revision: str = ""
    stuck: tuple[StuckPartition, ...] = ()
    error_reason: str = ""
    error_message: str = ""
    ended_reason: str = ""
    ended_message: str = ""
    ended_since: float | None = None
    breaker: BreakerObservation | None = None
    failed: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def breaker_open(self) -> bool:
        """Whether this worker holds its records back because too many of them failed."""
        return self.breaker is not None and self.breaker.state != CLOSED
