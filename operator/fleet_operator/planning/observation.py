"""Observations of a Kafka cluster: values from `observe` to the planners.

The two packages share nothing else. An unknown value is None (or absent from its mapping), never zero. All times are
epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fleet_consumer.contract.skips import PassedBy, Place
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning import times
from fleet_operator.planning.transactions import OpenTransaction
from fleet_operator.planning.work import WorkObservation

UNKNOWN_STATE: Final = "Unknown"
"""State of a group that could not be observed; never Kafka's `Dead` or `Empty`."""


class OffsetSample(NamedTuple):
    """An end offset at a time. Two samples give the time at which an offset in between was produced."""

    at: float
    end_offset: int


class MissingEnd(NamedTuple):
    """The last known end and start of a partition's log that did not answer; `since` is the time of that look."""

    since: float
    end_offset: int
    log_start: int | None


class Gap(NamedTuple):
    """Offsets from `first` up to and without `next` that were deleted before the group had handled them."""

    topic: str
    partition: int
    first: int
    next: int


class ProgressSample(NamedTuple):
    """A group's commits and the ends of its logs at a time; unknown partitions are absent."""

    at: float
    committed: Mapping[tuple[str, int], int]
    end_offsets: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One live broker, from Metadata."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopicInfo:
    """`__consumer_offsets` as it is; `cleanup_policy` and `segment_bytes` are None without permission to read them.

    `replication_factor` is that of the partition with the fewest replicas. `replicas` has each partition's brokers in
    their order, `leaders` each partition's leader, None for one without.
    """

    partitions: int
    replication_factor: int
    cleanup_policy: str | None = None
    segment_bytes: int | None = None
    replicas: tuple[tuple[int, ...], ...] = ()
    leaders: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker's settings of `__consumer_offsets`; each is None without permission to read it.

    `partitions`, `replication_factor` and `segment_bytes` are those with which it would create the topic, `retention_s`
    is for how long it keeps the commits of a group without members.
    """

    partitions: int | None = None
    replication_factor: int | None = None
    segment_bytes: int | None = None
    retention_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObservation:
    """One topic; `error` is the reason word when it cannot be used (`TopicNotFound`, `AuthorizationFailed`, …).

    `topic_id` tells topics of one name apart; None from brokers before Kafka 2.8.
    """

    partitions: int
    error: str | None = None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberObservation:
    """One member, from DescribeGroups; `partitions` is empty unless the group is Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The id that stays with the member: a static member that restarts has another member id."""
        return self.instance_id or self.member_id


class MemberName(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTransition:
    """A change of a group's state, as an observer saw it.

    - `before`: Unknown where an observer's history begins. It is equal to `after` (Stable) where a whole rebalance went
      by between two observations, which members or assignments show.
    - `at`: time of the observation that saw the new state.
    - `joined`, `left`: a few of the members that came or went; `joined_count` and `left_count` count all.
    """

    before: str
    after: str
    at: float
    joined: tuple[MemberName, ...] = ()
    left: tuple[MemberName, ...] = ()
    joined_count: int = 0
    left_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedTopic:
    """One of a group's retry, redrive and failed topics.

    `configs` holds the managed settings as the brokers return them (defaults too), None while unknown. `waiting` counts
    the records that the retry workers have not committed: 0 for a topic that does not exist, None while unknown, and
    for the failed topic, which no worker reads. `oldest_at` is the append time of the oldest of these, or a little
    earlier; None without any and while unknown. `error` is the reason word when the topic cannot be used
    (`TopicNotFound`, `AuthorizationFailed`, …).
    """

    partitions: int = 0
    configs: Mapping[str, str] | None = None
    waiting: int | None = None
    oldest_at: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryObservation:
    """A group's retry flow at one time.

    - `state`, `coordinator_id`, `members`: those of the retry workers' Kafka group.
    - `waiting`: records in all retry topics and the redrive topic that this group has not committed; `due_lag`: those
      whose due time (append time plus the topic's delay) has passed.
    - `oldest_due_at`: when the oldest of these became due (a later time while it is still searched), None without any.
    - `next_due_at`: when the next record becomes due, None when none waits.
    - `expired`: what retention deleted while it waited, and workers have not committed past.
    - `source_max_message_bytes`: the largest `max.message.bytes` of the source topics.
    - `found_delays`: delays of all retry topics of the group on the cluster, None unless they were asked for.
    - `may_read`: as of a group.
    - `error`: the reason word for unknown values. `counted` tells the two meanings of None apart for the times.
    """

    observed_at: float
    state: str = UNKNOWN_STATE
    coordinator_id: int | None = None
    members: tuple[MemberObservation, ...] = ()
    waiting: int | None = None
    due_lag: int | None = None
    oldest_due_at: float | None = None
    next_due_at: float | None = None
    topics: Mapping[str, ManagedTopic] = field(default_factory=dict)
    expired: tuple[Gap, ...] = ()
    source_max_message_bytes: int | None = None
    found_delays: tuple[str, ...] | None = None
    may_read: bool | None = None
    error: str | None = None

    @property
    def counted(self) -> bool:
        """True if every partition was observed, so that a time of None means "none"."""
        return self.waiting is not None and self.due_lag is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObservation:
    """One group at one time.

    - `state`: Kafka's word. `transitions`: how it became so, the last changes since this observer began, oldest first.
    - `committed` lacks partitions without a commit; `end_offsets` and `log_starts` lack unknown ones.
    - `missing_ends`: partitions whose end was known until a moment ago; those that stay unknown leave it.
    - `beyond_end`: partitions whose log ends before a commit that was there at the observation before, too. A commit of
      this moment may be newer than its end.
    - `end_history`: a few earlier end offsets of each partition, oldest first, to estimate the time behind.
    - `open_transactions`: partitions with records that a group of readers of committed records cannot read yet, seen at
      two comparisons at least; empty for other groups.
    - `samples`: the progress of the last minute and a half, oldest first, for a group that is scaled; without a gap, so
      that an outage restarts them.
    - `failed_records`: records in the failed topic; `failed_end`: sum of its end offsets. None unless every partition
      was observed.
    - `may_read`: the KafkaCluster's login has the right to be a member; None while that is unknown.
    - `error`: the reason word when only this group could not be observed; the other fields keep their last values.
    - `failing_since`: the first of the failed observations in a row, None for a group that was never observed;
      `doubtful` while that is recent.
    - `retry`: None for a group without a retry flow.
    """

    group_id: str
    observed_at: float
    state: str = UNKNOWN_STATE
    assignor: str = ""
    coordinator_id: int | None = None
    members: tuple[MemberObservation, ...] = ()
    transitions: tuple[GroupTransition, ...] = ()
    committed: Mapping[tuple[str, int], int] = field(default_factory=dict)
    end_offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    log_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    missing_ends: Mapping[tuple[str, int], MissingEnd] = field(default_factory=dict)
    beyond_end: frozenset[tuple[str, int]] = frozenset()
    end_history: Mapping[tuple[str, int], tuple[OffsetSample, ...]] = field(default_factory=dict)
    open_transactions: Mapping[tuple[str, int], OpenTransaction] = field(default_factory=dict)
    samples: tuple[ProgressSample, ...] = ()
    failed_records: int | None = None
    failed_end: int | None = None
    may_read: bool | None = None
    error: str | None = None
    failing_since: float | None = None
    doubtful: bool = False
    retry: RetryObservation | None = None

    @property
    def hanging(self) -> dict[tuple[str, int], OpenTransaction]:
        return {key: found for key, found in sorted(self.open_transactions.items()) if found.hangs}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObservation:
    """One observation of a Kafka cluster and of all watched groups.

    - `observed_at`: time of this attempt, good or not; `last_good_at`: time of the newest good one, whose values the
      other fields keep while `reachable` is False.
    - `reachable_since`: the first good attempt after the last failed one (or after the observer's start).
    - `reason`, `message`: the error of an unreachable cluster; `doubtful` while only one or two attempts have failed.
    - `answered`: addresses of the brokers that answered with the KafkaCluster's credentials.
    - `matches`: topic names by the text of each pattern.
    - `connection`: `KafkaClusterSpec.connection` of the attempt, or of the refusal to make one; `current` is False when
      the KafkaCluster has another one by now. `identified`: `cluster_id` was seen with this connection, and not kept
      from an earlier one.
    - `offsets_topic`: None while it does not exist, and while it cannot be described, for the reason in
      `offsets_topic_error`.
    - `broker_settings`: by broker; those that never answered are absent.
    - `group_count`: number of all groups of the cluster, None unless every broker answered; `groups_per_coordinator`:
      by broker, the last known number for `silent_brokers`, which live and did not answer.
    """

    observed_at: float
    reachable: bool
    reason: str = ""
    message: str = ""
    doubtful: bool = False
    cluster_id: str | None = None
    connection: str = ""
    current: bool = True
    identified: bool = True
    brokers: tuple[BrokerInfo, ...] = ()
    answered: tuple[str, ...] = ()
    metadata_version: int | None = None
    offsets_topic: OffsetsTopicInfo | None = None
    offsets_topic_error: str | None = None
    broker_settings: Mapping[int, BrokerSettings] = field(default_factory=dict)
    groups: Mapping[str, GroupObservation] = field(default_factory=dict)
    topics: Mapping[str, TopicObservation] = field(default_factory=dict)
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_count: int | None = None
    groups_per_coordinator: Mapping[int, int] = field(default_factory=dict)
    silent_brokers: tuple[int, ...] = ()
    last_good_at: float | None = None
    reachable_since: float | None = None

    @property
    def lacks_offsets_topic(self) -> bool:
        """True while `__consumer_offsets` has not been seen, and nothing keeps the operator from describing it."""
        return self.offsets_topic is None and self.offsets_topic_error is None

    @property
    def offsets_retention_s(self) -> float | None:
        """For how long every broker keeps the commits of a group without members; None unless all of them told.

        A group's coordinator may move to any of them.
        """
        found = [self.broker_settings.get(broker.id, BrokerSettings()).retention_s for broker in self.brokers]
        known = [seconds for seconds in found if seconds is not None]
        return min(known) if known and len(known) == len(found) else None


STALE_LOOKS: Final = 6
STALE_LEAST_S: Final = 60.0
"""Number of intervals, and least time, after which a missing observation shows that its observer hangs."""


def as_of(observation: ClusterObservation | None, *, interval_s: float, now: float) -> ClusterObservation | None:
    """The observation; as unreachable once it is so old that its observer must be hanging.

    The message has the time of the last observation and not its age, so that it stays the same.
    """
    if observation is None or not (observation.reachable or observation.doubtful):
        return observation
    if now - observation.observed_at <= max(STALE_LEAST_S, STALE_LOOKS * interval_s):
        return observation
    message = f"the cluster was last observed at {times.to_text(observation.observed_at)}: see the operator's log"
    return replace(observation, reachable=False, doubtful=False, reason=conditions.OBSERVATION_STALE, message=message)


def believed(observation: ClusterObservation | None, group_id: str | None = None) -> ClusterObservation | None:
    """The observation for statuses, in which one or two failed attempts do not show.

    Otherwise one lost connection would rewrite the status of every group of the cluster, twice. Decisions use the
    observation itself: no action rests on a believed value.
    """
    if observation is None:
        return None
    if observation.doubtful:
        observation = replace(observation, reachable=True, reason="", message="", doubtful=False)
    group = observation.groups.get(group_id) if group_id is not None else None
    if group is None:
        return observation
    shown = believed_group(group)
    return observation if shown is group else replace(observation, groups={**observation.groups, group.group_id: shown})


def believed_group(group: GroupObservation) -> GroupObservation:
    """The same for one group: a coordinator that moves does not show, nor does a partition that gets a new leader."""
    if not group.doubtful and not group.missing_ends:
        return group
    missing = group.missing_ends
    ends = {key: last.end_offset for key, last in missing.items()}
    starts = {key: last.log_start for key, last in missing.items() if last.log_start is not None}
    return replace(
        group,
        error=None if group.doubtful else group.error,
        doubtful=False,
        end_offsets={**ends, **group.end_offsets},
        log_starts={**starts, **group.log_starts},
        missing_ends={},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPartition:
    """A record that a worker cannot complete, with the worker's reason and message; `since` in epoch seconds."""

    topic: str
    partition: int
    offset: int
    since: float
    reason: str = ""
    message: str = ""


class WorkerRejoin(NamedTuple):
    """A worker's way into a generation of its group, as it reports it.

    `before` is the generation that it was in, `generation` the one that it came to; -1 for none (yet). `own` says that
    it did not only follow the others: `reason` is a cause of the rebalance.
    """

    before: int
    generation: int
    reason: str
    own: bool


CLOSED: Final = "Closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObservation:
    """One worker's report, from its `/member` endpoint.

    `error_…` is its present error; `ended_…` the error that ended its last session, reported until a session has run
    for a while. `failed` counts the records that it failed since its process began, by reason and error class, in
    powers of two. `skipped` has what it passed by on request. `expired` are the last gaps that it met in partitions of
    retry topics. `breaker`: Closed, Open or HalfOpen, Closed without one. `revoking`: its group's rebalance waits until
    its handler has let go of partitions. `work` is None for a worker of an earlier image. `heard_at`: when it answered.

    Reports that differ only in `work` and `heard_at` are equal: these change with every answer, and are no news.
    """

    pod: str
    member_id: str = ""
    generation: int = -1
    state: str = ""
    stuck: tuple[StuckPartition, ...] = ()
    error_reason: str = ""
    error_message: str = ""
    ended_reason: str = ""
    ended_message: str = ""
    ended_since: float | None = None
    breaker: str = CLOSED
    failed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    skipped: Mapping[Place, PassedBy] = field(default_factory=dict)
    expired: tuple[Gap, ...] = ()
    rejoins: tuple[WorkerRejoin, ...] = ()
    revoking: bool = False
    work: WorkObservation | None = field(default=None, compare=False)
    heard_at: float = field(default=0.0, compare=False)

    @property
    def breaker_open(self) -> bool:
        """True if the worker's breaker is open or half open."""
        return self.breaker != CLOSED
