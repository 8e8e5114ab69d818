"""A group's Kafka side in one observation, and the plan for its managed topics: create, grow, alter, delete. Pure.

No topic is ever shrunk, none is deleted while a record waits in it, and the size limit is never lowered, because a
record that was let in must fit to hop on. Shapes: `contract.managed_topics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fleet_consumer.contract import managed_topics, naming
from fleet_consumer.contract.managed_topics import RETENTION
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.lag import GroupLag, group_lag
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, ManagedTopic, RetryObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry import retention
from fleet_operator.planning.retry.intent import RetryIntent

ASKED_SETTINGS: Final = (*managed_topics.MANAGED_SETTINGS, managed_topics.SEGMENT)
"""Settings that a plan reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsPlan:
    """Changes to a group's topics.

    `create` and `grow` name topics as they should be, `alter` the settings to set, `delete` topics of drained delays in
    which nothing waits. `ready` is True once all wanted topics exist as wanted, False while something must be done or
    is in the way, None while unknown; retention alone keeps no worker from its work. `problem` is what the operator
    cannot correct. `requeue_after`: seconds until the plan is another one although nothing else changes.
    """

    create: tuple[managed_topics.WantedTopic, ...] = ()
    grow: tuple[managed_topics.WantedTopic, ...] = ()
    alter: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    ready: bool | None = None
    problem: Problem | None = None
    requeue_after: float | None = None

    @property
    def idle(self) -> bool:
        return not (self.create or self.grow or self.alter or self.delete)


def plan_topics(
    group: ConsumerGroup,
    intent: RetryIntent | None,
    counts: Mapping[str, int] | None,
    observation: ClusterObservation | None,
) -> TopicsPlan:
    """The plan for an observation. `intent` is None for a group without retries.

    `counts` are the partitions of each source topic; None while one of them is missing or unknown, and then nothing is
    created or grown.
    """
    if observation is None or not observation.reachable:
        return TopicsPlan()
    observed = observation.groups.get(group.group_id)
    retry = observed.retry if observed is not None else None
    wanted = tuple(wanted_topics(group, intent, counts, retry)) if counts else ()
    gone = gone_topics(group, intent, observation)
    wanted = tuple(topic for topic in wanted if topic.name not in gone)
    known = {topic.name: observation.topics.get(topic.name) for topic in wanted}
    asked = [(topic, seen) for topic in wanted if (seen := known[topic.name]) is not None]
    create = tuple(topic for topic, seen in asked if seen.error == conditions.TOPIC_NOT_FOUND)
    there = [(topic, seen) for topic, seen in asked if seen.error is None]
    grow = tuple(topic for topic, seen in there if seen.partitions < topic.partitions) if intent is not None else ()
    alter = _alter(group, intent, (topic for topic, _ in there), retry)
    problem = _unusable(wanted, observation)
    ready: bool | None = None
    if wanted and len(asked) == len(wanted):
        ready = not (create or grow or problem or any(drift.keys() - {RETENTION} for drift in alter.values()))
    return TopicsPlan(
        create=create,
        grow=grow,
        alter=alter,
        delete=tuple(_deletable(group, intent, observation, retry)),
        ready=ready,
        problem=problem,
        requeue_after=retention.next_change(group, retry) if retry is not None else None,
    )


def _alter(
    group: ConsumerGroup,
    intent: RetryIntent | None,
    there: Iterable[managed_topics.WantedTopic],
    retry: RetryObservation | None,
) -> dict[str, dict[str, str]]:
    """The settings to set, by topic. Retention is lifted while what waits must be kept, and not lowered while that is
    unknown, also for what waits after the end of retries. Topics of retries that have ended are else the user's."""
    if retry is None:
        return {}
    flow = tuple(retention.flow_topics(group.group_id, retry))
    must_keep = {name: retention.must_keep(group, topic, delay_s, retry.observed_at) for name, topic, delay_s in flow}
    found: dict[str, dict[str, str]] = {}
    for topic in there:
        seen = _managed(retry, topic.name).configs
        raised = (
            (managed_topics.SIZE,) if must_keep.get(topic.name, False) is False else (managed_topics.SIZE, RETENTION)
        )
        if seen is not None:
            found[topic.name] = managed_topics.drifted(topic.configs, seen, never_lowered=raised)
    if intent is not None and not retention.is_set(group):
        for name, managed, _ in flow:
            if must_keep[name] and managed.configs is not None and not retention.is_kept(managed):
                found.setdefault(name, {})[RETENTION] = managed_topics.UNLIMITED
    return {name: settings for name, settings in found.items() if settings}


def wanted_topics(
    group: ConsumerGroup, intent: RetryIntent | None, counts: Mapping[str, int], retry: RetryObservation | None
) -> Iterator[managed_topics.WantedTopic]:
    """The topics that the group should have: shortest delay first, then redrive, then failed."""
    spec = group.spec.managed_topics
    name = naming.failed_topic(group.group_id)
    shape = managed_topics.TopicShape(
        partitions=spec.partitions or max(counts.values()),
        replication_factor=spec.replication_factor or managed_topics.BROKER_DEFAULT,
        retention_seconds=spec.retention_seconds,
        failed_retention_seconds=spec.failed_retention_seconds,
        source_max_message_bytes=retry.source_max_message_bytes if retry is not None else None,
        failed_segment_ms=managed_topics.segment_ms(_managed(retry, name).configs or {}),
    )
    if intent is not None and not intent.ended:
        yield from shape.flow(group.group_id, intent.delays, intent.total_seconds)
    yield shape.failed(name)


def gone_topics(group: ConsumerGroup, intent: RetryIntent | None, observation: ClusterObservation) -> frozenset[str]:
    """The missing topics of delays that no revision uses: nothing is written to them, and they are not made again."""
    unused = intent.unused if intent is not None else ()
    names = frozenset(naming.retry_topic(group.group_id, delay) for delay in unused)
    seen = {name: observation.topics.get(name) for name in names}
    return frozenset(name for name, topic in seen.items() if topic and topic.error == conditions.TOPIC_NOT_FOUND)


def _managed(retry: RetryObservation | None, name: str) -> ManagedTopic:
    return (retry.topics.get(name) if retry is not None else None) or ManagedTopic()


def _unusable(wanted: tuple[managed_topics.WantedTopic, ...], observation: ClusterObservation) -> Problem | None:
    """The first topic that exists and that the operator may not use."""
    for topic in wanted:
        seen = observation.topics.get(topic.name)
        if seen is not None and seen.error not in (None, conditions.TOPIC_NOT_FOUND):
            return Problem(str(seen.error), f"topic {topic.name} cannot be used: {seen.error}")
    return None


def _deletable(
    group: ConsumerGroup, intent: RetryIntent | None, observation: ClusterObservation, retry: RetryObservation | None
) -> Iterator[str]:
    """Existing topics of removed delays that the spec wants deleted and that are known to hold no waiting record."""
    if intent is None or group.spec.deletion.retry_topics == "Keep":
        return
    for delay in intent.drained_delays:
        name = naming.retry_topic(group.group_id, delay)
        seen = observation.topics.get(name)
        there = delay not in intent.delays and seen is not None and seen.error is None
        if there and _managed(retry, name).waiting == 0:
            yield name


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One observation, evaluated once for one group.

    `observed` is None while the group could not be observed; earlier values stay valid then. `source_topics` is
    as in the function of this name. `known_counts` has the partitions of each source topic that is there,
    `partition_counts` is the same, and None while a topic is missing or not observed yet. `lag` is that of known
    topics, and not complete while one is missing; None without `observed` or any topic.
    """

    observation: ClusterObservation | None = None
    observed: GroupObservation | None = None
    source_topics: tuple[str, ...] | None = None
    partition_counts: Mapping[str, int] | None = None
    known_counts: Mapping[str, int] = field(default_factory=dict)
    lag: GroupLag | None = None
    topics: TopicsPlan = field(default_factory=TopicsPlan)

    @property
    def flow(self) -> RetryObservation | None:
        """The retry flow; None when it could not be observed: an earlier observation proves nothing."""
        flow = self.observed.retry if self.observed is not None else None
        return None if flow is None or flow.error else flow


def view_group(
    group: ConsumerGroup, observation: ClusterObservation | None, retry: RetryIntent | None, *, own_cluster: bool = True
) -> GroupView:
    """The view; with `own_cluster` False no action is planned, as another Kafka cluster than the group's answers."""
    sources = _source_topics(group, observation)
    if observation is None or not observation.reachable:
        return GroupView(observation=observation, source_topics=sources)
    observed = observation.groups.get(group.group_id)
    if observed is not None and observed.error:
        observed = None
    found = {topic: observation.topics.get(topic) for topic in sources or ()}
    known = {name: topic.partitions for name, topic in found.items() if topic and not topic.error}
    counts = known if known and len(known) == len(found) else None
    lag = None
    if observed is not None and known:
        partitions = [(topic, number) for topic, count in known.items() for number in range(count)]
        lag = group_lag(observed, partitions, group.spec.consumer.auto_offset_reset)
        lag = lag if counts is not None else replace(lag, complete=False)
    return GroupView(
        observation=observation,
        observed=observed,
        source_topics=sources,
        partition_counts=counts,
        known_counts=known,
        lag=lag,
        topics=plan_topics(group, retry, counts, observation) if own_cluster else TopicsPlan(),
    )


def missing_topics(group: ConsumerGroup, view: GroupView) -> Problem | None:
    """Source and output topics that certainly do not exist; one that has not been observed yet is no problem."""
    if view.observation is None or not view.observation.reachable:
        return None
    known, sources = view.observation.topics, view.source_topics
    needed = (*(sources or ()), *group.spec.handler.outputs)
    missing = [name for name in needed if name in known and known[name].error == conditions.TOPIC_NOT_FOUND]
    if missing:
        return Problem(
            conditions.TOPIC_NOT_FOUND,
            f"topics missing on the cluster: {name_some(missing)}; create them, as the operator creates no source and "
            "output topics",
        )
    if sources == ():
        return Problem(
            conditions.TOPIC_NOT_FOUND,
            f"no topic on the cluster matches spec.topicPattern {group.spec.topic_pattern!r}: create one, or "
            "correct the pattern; the workers wait",
        )
    return None


def _source_topics(group: ConsumerGroup, observation: ClusterObservation | None) -> tuple[str, ...] | None:
    """The topics of the spec, or those that match its pattern; None until an observation used this very pattern."""
    if group.spec.topic_pattern is None:
        return group.source_topics
    if observation is None or not observation.reachable:
        return None
    return observation.matches.get(group.spec.topic_pattern)
