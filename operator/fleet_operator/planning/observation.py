"""Observations of a Kafka cluster. They are the only values that `observe` passes to the planners.

An unknown value is None (or absent from its mapping), never zero. All times are epoch seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fleet_consumer.contract.skips import PassedBy, Place
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning import times
from fleet_operator.planning.work import WorkObservation

UNKNOWN_STATE: Final = "Unknown"
"""State of a group that could not be observed; different from Kafka's states `Dead` and `Empty`."""


class OffsetSample(NamedTuple):
    """An end offset at a time. Two samples give an estimate of when a record between them was produced."""

    at: float
    end_offset: int


class MissingEnd(NamedTuple):
    """The last known end and start offsets of a partition's log. `since`: the time of the first poll that did not
    return the end offset."""

    since: float
    end_offset: int
    log_start: int | None


class Gap(NamedTuple):
    """Offsets that were deleted before the group had handled them: from `first` up to, but not including, `next`."""

    topic: str
    partition: int
    first: int
    next: int


class ProgressSample(NamedTuple):
    """A group's committed offsets and log end offsets at one time; unknown partitions are absent."""

    at: float
    committed: Mapping[tuple[str, int], int]
    end_offsets: Mapping[tuple[str, int], int]


HANGS_S: Final = 120.0
"""Seconds after which an open transaction counts as hanging: twice the default `transaction.timeout.ms` (a minute)."""


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a partition.

    - `offset`: the transaction's first offset; consumers with read_committed stop there.
    - `since`: the time of the first poll that saw the transaction.
    - `stood_s`: the seconds (monotonic clock) from this first poll to the latest poll that compared the last stable
      offset with the high watermark.
    - `end_offset`: the high watermark in this latest poll.
    """

    offset: int
    since: float
    stood_s: float
    end_offset: int

    @property
    def hangs(self) -> bool:
        return self.stood_s >= HANGS_S


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopicInfo:
    """The topic `__consumer_offsets` as observed.

    - `cleanup_policy`, `segment_bytes`: None without permission to read them.
    - `replication_factor`: the smallest number of replicas of any partition.
    - `replicas`: each partition's brokers, in the order of the partition's replica list. `leaders`: each partition's
      leader, or None without a leader.
    """

    partitions: int
    replication_factor: int
    cleanup_policy: str | None = None
    segment_bytes: int | None = None
    replicas: tuple[tuple[int, ...], ...] = ()
    leaders: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker's settings for `__consumer_offsets`, each None without permission to read it. The broker would create
    the topic with the first three settings. `retention_s`: seconds for which the broker keeps the commits of a group
    without members."""

    partitions: int | None = None
    replication_factor: int | None = None
    segment_bytes: int | None = None
    retention_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObservation:
    """One topic; `error` is the reason word if it cannot be used (`TopicNotFound`, `AuthorizationFailed`, …).
    `topic_id` differs between a topic and a deleted topic of the same name; None from brokers before Kafka 2.8."""

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
        """An id of the member. For a static member, it stays the same after a restart, although the member id
        changes."""
        return self.instance_id or self.member_id


class MemberName(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTransition:
    """A change of a group's state, as an observer saw it.

    - `before`: Unknown at the start of an observer's history. `before` and `after` are both Stable if members or
      assignments show that a whole rebalance took place between two observations.
    - `at`: time of the observation that saw the new state.
    - `joined`, `left`: some of the members that joined or left; `joined_count` and `left_count` count all of them.
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

    - `configs`: the managed settings as the brokers return them, including defaults; None while unknown.
    - `waiting`: number of records that the retry workers have not committed, 0 if the topic does not exist. None while
      unknown, and for the failed topic, which no worker reads.
    - `oldest_at`: append time of the oldest waiting record, or slightly earlier; None if no record waits, and while
      unknown.
    """

    partitions: int = 0
    configs: Mapping[str, str] | None = None
    waiting: int | None = None
    oldest_at: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryObservation:
    """A group's retry and redrive topics at one time.

    - `state`, `coordinator_id`, `members`: state, coordinator and members of the retry workers' Kafka group.
    - `waiting`: number of records in all retry topics and the redrive topic that this group has not committed;
      `due_lag`: the number of these records that are due. A record's due time is its append time plus the topic's
      delay.
    - `oldest_due_at`: the due time of the oldest due record; None without a due record. While the search for this
      record continues, the time may be too late.
    - `next_due_at`: next time at which a record becomes due; None if no record waits.
    - `expired`: records that retention deleted while they waited and that the group has not committed past yet.
    - `source_max_message_bytes`: the largest `max.message.bytes` of the source topics.
    - `found_delays`: delays of all retry topics of the group on the cluster; None unless requested.
    - `may_read`: as in GroupObservation. `error`: the reason word if values are unknown.
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
        """True if every partition was observed. Only then, None in `oldest_due_at` means that no record is due, and
        None in `next_due_at` means that no record waits."""
        return self.waiting is not None and self.due_lag is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObservation:
    """One group at one time.

    - `state`: as Kafka names it. `transitions`: the last changes since this observer started, oldest first.
    - `committed` lacks partitions without a commit; `end_offsets` and `log_starts` lack unknown partitions.
    - `missing_ends`: partitions whose end offset became unknown a moment ago. If the end offset stays unknown, the
      entry is removed.
    - `beyond_end`: partitions whose log ends before a commit that the previous observation also saw. A new commit does
      not count, because the commit may be newer than the observed end.
    - `end_history`: some earlier end offsets of each partition, oldest first, to estimate how long the group is behind.
    - `open_transactions`: partitions with records that a read_committed group cannot read yet, seen in at least two
      comparisons; empty for other groups.
    - `samples`: progress of the last 90 s, oldest first, for a scaled group. After an outage, earlier samples are
      discarded, so that samples have no gaps.
    - `failed_records`: number of records in the failed topic; `failed_end`: sum of this topic's end offsets. Both are
      None unless every partition was observed.
    - `may_read`: the KafkaCluster's credentials may join the group; None while unknown. `retry`: None without retries.
    - `error`: reason word if only this group could not be observed. The other fields then keep their last values.
    - `failing_since`: time of the first of the consecutive failed observations; None for a group that was never
      observed. `unconfirmed`: the failure is recent.
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
    unconfirmed: bool = False
    retry: RetryObservation | None = None

    @property
    def hanging(self) -> dict[tuple[str, int], OpenTransaction]:
        return {key: found for key, found in sorted(self.open_transactions.items()) if found.hangs}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObservation:
    """One observation of a Kafka cluster and of all watched groups.

    - `observed_at`: time of this attempt, successful or not. `last_good_at`: time of the newest successful attempt.
      While `reachable` is False, the other fields keep the values of that attempt.
    - `reachable_since`: time of the first successful attempt after the last failed attempt, or after the observer's
      start.
    - `reason`, `message`: the error of an unreachable cluster; `unconfirmed`: only one or two attempts have failed.
    - `answered`: addresses of the brokers that answered with the KafkaCluster's credentials.
    - `matches`: topic names keyed by pattern.
    - `connection`: the `KafkaClusterSpec.connection` with which the attempt was made, or refused by the operator.
      `current`: False once the KafkaCluster has another connection. `identified`: `cluster_id` was read with this
      connection, not with an earlier connection.
    - `offsets_topic`: None while the topic does not exist, or cannot be described for the reason `offsets_topic_error`.
    - `broker_settings`: keyed by broker id; brokers that never answered are absent.
    - `group_count`: number of all groups of the cluster; None unless every broker answered. `groups_per_coordinator`:
      keyed by broker id. `silent_brokers`: live brokers that did not answer; their last known numbers are kept.
    """

    observed_at: float
    reachable: bool
    reason: str = ""
    message: str = ""
    unconfirmed: bool = False
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
        """True while `__consumer_offsets` does not exist. False if the topic exists or cannot be described."""
        return self.offsets_topic is None and self.offsets_topic_error is None

    @property
    def offsets_retention_s(self) -> float | None:
        """Shortest time in seconds for which a broker keeps the commits of a group without members. None unless all
        brokers reported this setting, because the group's coordinator may move to any broker."""
        found = [self.broker_settings.get(broker.id, BrokerSettings()).retention_s for broker in self.brokers]
        known = [seconds for seconds in found if seconds is not None]
        return min(known) if known and len(known) == len(found) else None


STALE_POLLS: Final = 6
STALE_LEAST_S: Final = 60.0
"""An observer counts as hanging after `STALE_POLLS` poll intervals without an observation, but not before
`STALE_LEAST_S` seconds."""


def as_of(observation: ClusterObservation | None, *, interval_s: float, now: float) -> ClusterObservation | None:
    """Mark the cluster as unreachable in an observation whose observer hangs. The message does not have the age of the
    observation, so that it does not change all the time."""
    if observation is None or not (observation.reachable or observation.unconfirmed):
        return observation
    if now - observation.observed_at <= max(STALE_LEAST_S, STALE_POLLS * interval_s):
        return observation
    message = f"the cluster was last observed at {times.to_text(observation.observed_at)}: see the operator's log"
    return replace(
        observation, reachable=False, unconfirmed=False, reason=conditions.OBSERVATION_STALE, message=message
    )


def last_known(observation: ClusterObservation | None, group_id: str | None = None) -> ClusterObservation | None:
    """The observation to show in statuses. If only one or two attempts have failed, it has the last known values.
    Otherwise one lost connection would cause two writes of the status of each of the cluster's groups. Decisions never
    use last known values."""
    if observation is None:
        return None
    if observation.unconfirmed:
        observation = replace(observation, reachable=True, reason="", message="", unconfirmed=False)
    group = observation.groups.get(group_id) if group_id is not None else None
    if group is None:
        return observation
    shown = last_known_group(group)
    return observation if shown is group else replace(observation, groups={**observation.groups, group.group_id: shown})


def last_known_group(group: GroupObservation) -> GroupObservation:
    """The group's observation to show in statuses. It has the last known values while the coordinator or the leader of
    a partition moves."""
    if not group.unconfirmed and not group.missing_ends:
        return group
    missing = group.missing_ends
    ends = {key: last.end_offset for key, last in missing.items()}
    starts = {key: last.log_start for key, last in missing.items() if last.log_start is not None}
    return replace(
        group,
        error=None if group.unconfirmed else group.error,
        unconfirmed=False,
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
    """A worker's change from generation `before` to `generation` of its group, as the worker reports it; -1 means no
    generation. `own`: True if the worker itself caused the rebalance, for this `reason`. False if it joined again
    because of another member's rebalance."""

    before: int
    generation: int
    reason: str
    own: bool


CLOSED: Final = "Closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObservation:
    """One worker's report, from its `/member` endpoint.

    - `error_…`: the worker's present error; `ended_…`: the error that ended its last session, reported until a session
      has run for a while.
    - `failed`: numbers of failed records since the worker's process started, rounded to lag buckets, keyed by reason
      and error class.
    - `skipped`: records that the worker skipped on request. `expired`: the last gaps in its partitions of retry topics.
    - `breaker`: Closed, Open or HalfOpen; Closed for a worker without a breaker.
    - `revoking`: the group's rebalance waits until the worker's handler has released partitions.
    - `work`: None for a worker with an older image. `heard_at`: time of the worker's answer.

    Reports that differ only in `work` and `heard_at` are equal, because these fields change with every answer, and no
    reconcile depends on them.
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
        return self.breaker != CLOSED
