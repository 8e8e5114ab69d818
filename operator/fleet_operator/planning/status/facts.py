"""What the status of a ConsumerGroup is made from: one record, gathered by the reconciler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.fleet.blocking import cluster_id_changed
from fleet_operator.planning.fleet.rollout import FleetFacts, PodFacts, RolloutDecision
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, WorkerObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.topics import TopicsPlan, plan_topics
from fleet_operator.planning.source_topics import partition_counts, source_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupFacts:
    """Everything that a ConsumerGroup's status depends on, besides its previous status and the time.

    `cluster` is None when the KafkaCluster does not exist, `observation` while nobody has looked yet. `rollout` is this
    visit's decision, `wanted_replicas` that of `blocking.wanted_replicas`. `fleet`, `pods` and `workers` are as read in
    this visit; workers that could not be asked are left out. `refusal` is set when the API server refused one of our
    children, `topic_problem` when a managed topic cannot be used or be brought to what it should be. `retry` is the
    wanted retry flow, None for a group without one; `retry_fleet` and `retry_pods` are its workers as found. `redrives`
    are the statuses of the group's Redrives.
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
    retry: RetryIntent | None = None
    retry_fleet: FleetFacts | None = None
    retry_pods: tuple[PodFacts, ...] = ()
    redrives: tuple[Mapping[str, Any], ...] = ()

    @property
    def observed_group(self) -> GroupObservation | None:
        """The Kafka group as just seen; None when it could not be asked (what was known before must stay)."""
        if self.observation is None or not self.observation.reachable:
            return None
        found = self.observation.groups.get(self.group.group_id)
        return None if found is None or found.error else found

    @property
    def topics_plan(self) -> TopicsPlan:
        """What is to be done to the group's managed topics; nothing on another cluster than the object's own."""
        if self.cluster is not None and cluster_id_changed(self.cluster, self.observation):
            return TopicsPlan()
        return plan_topics(self.group, self.retry, self.partition_counts, self.observation)

    @property
    def open_breakers(self) -> tuple[str, ...]:
        """The pods whose workers hold records back because too many failed; while any does, lag says nothing of load,
        and a partition that stands still is not stuck."""
        return tuple(sorted(worker.pod for worker in self.workers if worker.breaker_open))

    @property
    def failed_topic(self) -> str:
        return naming.failed_topic(self.group.group_id)

    @property
    def failed_topic_id(self) -> str | None:
        """The failed topic's id; None while unknown."""
        topic = self.observation.topics.get(self.failed_topic) if self.observation is not None else None
        return topic.topic_id if topic is not None else None

    @property
    def source_topics(self) -> tuple[str, ...] | None:
        """The topics that the group reads; see the function of the same name."""
        return source_topics(self.group, self.observation)

    @property
    def partition_counts(self) -> dict[str, int] | None:
        """Partitions of each source topic; see the function of the same name."""
        return partition_counts(self.group, self.observation)
