"""What the status of a ConsumerGroup is made from: one record, gathered by the reconciler."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_consumer import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, WorkerObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.rollout import FleetFacts, PodFacts, RolloutDecision
from fleet_operator.planning.topic_pattern import PatternRefused, group_pattern, matched


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupFacts:
    """Everything that a ConsumerGroup's status depends on, besides its previous status and the time.

    `cluster` is None when the KafkaCluster does not exist, `observation` while nobody has looked yet. `rollout` is this
    visit's decision, `wanted_replicas` that of `blocking.wanted_replicas`. `fleet`, `pods` and `workers` are as read in
    this visit; workers that could not be asked are left out. `refusal` is set when the API server refused one of our
    children, `topic_problem` when the failed topic could not be made.
    """

    group: ConsumerGroup
    cluster: KafkaCluster | None
    observation: ClusterObservation | None
    rollout: RolloutDecision
    wanted_replicas: int
    fleet: FleetFacts | None = None
    pods: tuple[PodFacts, ...] = ()
    workers: tuple[WorkerObservation, ...] = ()
    refusal: Problem | None = None
    topic_problem: Problem | None = None

    @property
    def observed_group(self) -> GroupObservation | None:
        """The Kafka group as just seen; None when it could not be asked (what was known before must stay)."""
        if self.observation is None or not self.observation.reachable:
            return None
        found = self.observation.groups.get(self.group.group_id)
        return None if found is None or found.error else found

    @property
    def failed_topic(self) -> str:
        return naming.failed_topic(self.group.group_id)

    @property
    def source_topics(self) -> tuple[str, ...] | None:
        """The topics that the group reads: the spec's, or those that match its pattern; None while nobody has looked.

        A pattern's topics are known once the group itself was part of a look: before, only others' topics are.
        """
        seen = self.observation
        if self.group.spec.topic_pattern is None:
            return self.group.source_topics
        if seen is None or not seen.reachable or self.group.group_id not in seen.groups:
            return None
        try:
            pattern = group_pattern(self.group)
        except PatternRefused:
            return None
        assert pattern is not None
        return matched(pattern, seen.topics)

    @property
    def partition_counts(self) -> dict[str, int] | None:
        """Partitions of each source topic; None while one of them is missing or has not been asked for."""
        if self.observation is None or not self.observation.reachable:
            return None
        found = {topic: self.observation.topics.get(topic) for topic in self.source_topics or ()}
        counts = {name: topic.partitions for name, topic in found.items() if topic and not topic.error}
        return counts if counts and len(counts) == len(found) else None
