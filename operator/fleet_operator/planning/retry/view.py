"""A ConsumerGroup's Kafka side in one observation, with the actions on its managed topics that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.lag import GroupLag, group_lag
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, RetryObservation
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.topics import TopicsPlan, plan_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One observation, evaluated once for one group.

    `observed` is None while the group could not be observed; earlier values stay valid then. `source_topics` and
    `partition_counts` are as in the functions of these names. `lag` is None without `observed` or `partition_counts`.
    """

    observation: ClusterObservation | None = None
    observed: GroupObservation | None = None
    source_topics: tuple[str, ...] | None = None
    partition_counts: Mapping[str, int] | None = None
    lag: GroupLag | None = None
    topics: TopicsPlan = field(default_factory=TopicsPlan)

    @property
    def flow(self) -> RetryObservation | None:
        """The retry flow; None when it could not be observed: an earlier observation proves nothing."""
        flow = self.observed.retry if self.observed is not None else None
        return None if flow is None or flow.error else flow


def view_group(
    group: ConsumerGroup,
    observation: ClusterObservation | None,
    retry: RetryIntent | None,
    *,
    own_cluster: bool = True,
) -> GroupView:
    """The view; with `own_cluster` False no action is planned, as another Kafka cluster than the group's answers."""
    sources = _source_topics(group, observation)
    if observation is None or not observation.reachable:
        return GroupView(observation=observation, source_topics=sources)
    observed = observation.groups.get(group.group_id)
    if observed is not None and observed.error:
        observed = None
    counts = _partition_counts(sources, observation)
    lag = None
    if observed is not None and counts is not None:
        partitions = [(topic, number) for topic, count in counts.items() for number in range(count)]
        lag = group_lag(observed, partitions, group.spec.consumer.auto_offset_reset)
    return GroupView(
        observation=observation,
        observed=observed,
        source_topics=sources,
        partition_counts=counts,
        lag=lag,
        topics=plan_topics(group, retry, counts, observation) if own_cluster else TopicsPlan(),
    )


def _source_topics(group: ConsumerGroup, observation: ClusterObservation | None) -> tuple[str, ...] | None:
    """The topics of the spec, or those that match its pattern; None until an observation used this very pattern."""
    if group.spec.topic_pattern is None:
        return group.source_topics
    if observation is None or not observation.reachable:
        return None
    return observation.matches.get(group.spec.topic_pattern)


def _partition_counts(sources: tuple[str, ...] | None, observation: ClusterObservation) -> dict[str, int] | None:
    """Partitions of each source topic; None while one of them is missing or not observed yet."""
    found = {topic: observation.topics.get(topic) for topic in sources or ()}
    counts = {name: topic.partitions for name, topic in found.items() if topic and not topic.error}
    return counts if counts and len(counts) == len(found) else None
