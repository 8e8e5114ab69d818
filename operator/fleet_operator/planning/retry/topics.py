"""Evaluation of an observation for one group, and the plan for the group's managed topics: create, grow, alter, delete.
Pure.

Partitions are only added, and no topic is deleted while a record waits in it. The size limit of a topic is never
lowered, because a record that one retry topic accepted must fit into the next. `contract.managed_topics` computes the
wanted partitions and settings. The retention of a retry topic is at least three times the topic's own delay, even if
the spec sets less.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fleet_consumer.contract import managed_topics, naming
from fleet_consumer.contract.managed_topics import RETENTION, SIZE
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.lag import GroupLag, group_lag
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, ManagedTopic, RetryObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry import retention
from fleet_operator.planning.retry.intent import RetryIntent

ASKED_SETTINGS: Final = (*managed_topics.MANAGED_SETTINGS, managed_topics.SEGMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsPlan:
    """Changes to a group's topics.

    - `grow`: topics that need more partitions. `alter`: settings to change, keyed by topic.
    - `delete`: topics of drained delays in which no record waits.
    - `ready`: True if all wanted topics exist with the wanted settings, False while a change or a problem is pending,
      None while unknown. A pending change of only the retention does not make `ready` False.
    - `problem`: a problem that the operator cannot correct.
    - `requeue_after`: seconds until the plan changes even without a new observation; None if it will not change.
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
    """Plan the changes to a group's topics. `counts`: the number of partitions of each source topic. It is None while a
    source topic is missing or unknown; no topic is then created or grown. `intent`: None for a group without
    retries."""
    if observation is None or not observation.reachable:
        return TopicsPlan()
    observed = observation.groups.get(group.group_id)
    retry = observed.retry if observed is not None else None
    gone = gone_topics(group, intent, observation)
    all_topics: Iterable[managed_topics.WantedTopic] = wanted_topics(group, intent, counts, retry) if counts else ()
    wanted = tuple(topic for topic in all_topics if topic.name not in gone)
    asked = [(topic, seen) for topic in wanted if (seen := observation.topics.get(topic.name)) is not None]
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
    """Return the settings to change, keyed by topic.

    The retention of a topic becomes unlimited while its waiting records must be kept, and is not lowered while this is
    unknown. After retries have ended, the retention of retry topics can still become unlimited. Their other settings
    are then left to the user."""
    if retry is None:
        return {}
    flow = tuple(retention.flow_topics(group.group_id, retry))
    must_keep = {name: retention.must_keep(group, topic, delay_s, retry.observed_at) for name, topic, delay_s in flow}
    found: dict[str, dict[str, str]] = {}
    for topic in there:
        seen = managed_topic(retry, topic.name).configs
        raised = (SIZE,) if must_keep.get(topic.name, False) is False else (SIZE, RETENTION)
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
    """Yield the wanted retry topics, the shortest delay first, then the redrive topic, then the failed topic."""
    spec = group.spec.managed_topics
    name = naming.failed_topic(group.group_id)
    shape = managed_topics.TopicShape(
        partitions=spec.partitions or max(counts.values()),
        replication_factor=spec.replication_factor or managed_topics.BROKER_DEFAULT,
        retention_seconds=spec.retention_seconds,
        failed_retention_seconds=spec.failed_retention_seconds,
        source_max_message_bytes=retry.source_max_message_bytes if retry is not None else None,
        failed_segment_ms=managed_topics.segment_ms(managed_topic(retry, name).configs or {}),
    )
    if intent is not None and not intent.ended:
        yield from shape.flow(group.group_id, intent.delays, intent.total_seconds)
    yield shape.failed_topic(name)


def gone_topics(group: ConsumerGroup, intent: RetryIntent | None, observation: ClusterObservation) -> frozenset[str]:
    """Return the missing topics of delays that no revision uses. They are not created again, because no worker writes
    to them."""
    unused = intent.unused if intent is not None else ()
    names = frozenset(naming.retry_topic(group.group_id, delay) for delay in unused)
    seen = {name: observation.topics.get(name) for name in names}
    return frozenset(name for name, topic in seen.items() if topic and topic.error == conditions.TOPIC_NOT_FOUND)


def managed_topic(retry: RetryObservation | None, name: str) -> ManagedTopic:
    return (retry.topics.get(name) if retry is not None else None) or ManagedTopic()


def _unusable(wanted: tuple[managed_topics.WantedTopic, ...], observation: ClusterObservation) -> Problem | None:
    """Return the problem of the first existing topic that cannot be used; None if all can be used."""
    for topic in wanted:
        seen = observation.topics.get(topic.name)
        if seen is not None and seen.error not in (None, conditions.TOPIC_NOT_FOUND):
            return Problem(str(seen.error), f"topic {topic.name} cannot be used: {seen.error}")
    return None


def _deletable(
    group: ConsumerGroup, intent: RetryIntent | None, observation: ClusterObservation, retry: RetryObservation | None
) -> Iterator[str]:
    """If the spec wants retry topics deleted, yield the topics of leaving delays that are known to have no waiting
    record."""
    if intent is None or group.spec.deletion.retry_topics == "Keep":
        return
    for delay in intent.drained_delays:
        name = naming.retry_topic(group.group_id, delay)
        seen = observation.topics.get(name)
        there = delay not in intent.delays and seen is not None and seen.error is None
        if there and managed_topic(retry, name).waiting == 0:
            yield name


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """An observation, evaluated once for one group.

    - `observed`: None while the group cannot be observed.
    - `source_topics`: the topics in the spec, or those that match its pattern; None while they are unknown.
    - `known_counts`: the number of partitions of each existing source topic. `partition_counts`: the same numbers; None
      while a source topic is missing or not observed yet.
    - `lag`: incomplete while a source topic is missing. None while the group cannot be observed, or while no source
      topic exists.
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
        """The retry topics in the newest observation. None if the topics could not be observed: topics and revisions
        may be removed only with current values."""
        flow = self.observed.retry if self.observed is not None else None
        return None if flow is None or flow.error else flow


def view_group(
    group: ConsumerGroup, observation: ClusterObservation | None, retry: RetryIntent | None, *, own_cluster: bool = True
) -> GroupView:
    """Evaluate an observation for one group. `own_cluster`: False if another Kafka cluster answers; then no topic
    changes are planned."""
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
    """Return a problem that names the missing source and output topics. Topics that were not observed do not count as
    missing."""
    if view.observation is None or not view.observation.reachable:
        return None
    known, sources = view.observation.topics, view.source_topics
    needed = (*(sources or ()), *group.spec.handler.outputs)
    missing = [name for name in needed if name in known and known[name].error == conditions.TOPIC_NOT_FOUND]
    if missing:
        return Problem(
            conditions.TOPIC_NOT_FOUND,
            f"topics missing on the cluster: {name_some(missing)}; create them, because the operator creates no source "
            "or output topics",
        )
    if sources == ():
        return Problem(
            conditions.TOPIC_NOT_FOUND,
            f"no topic on the cluster matches spec.topicPattern {group.spec.topic_pattern!r}: create one, or "
            "correct the pattern; the workers wait",
        )
    return None


def _source_topics(group: ConsumerGroup, observation: ClusterObservation | None) -> tuple[str, ...] | None:
    """Return the topics in the spec or those that match its pattern; None until an observation has used the pattern."""
    if group.spec.topic_pattern is None:
        return group.source_topics
    if observation is None or not observation.reachable:
        return None
    return observation.matches.get(group.spec.topic_pattern)
