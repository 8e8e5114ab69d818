"""Input of a ConsumerGroup's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.fleet.image import WorkerImage
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, Part
from fleet_operator.planning.fleet.rollout import RolloutDecision
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, PodFacts
from fleet_operator.planning.fleet.waves import NO_TURN, Turn
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, WorkerObservation
from fleet_operator.planning.offsets.expiry import NOTHING_KNOWN, ExpiryDecision
from fleet_operator.planning.offsets.hold import Hold
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.retention import NOTHING_WAITS, Kept, judge
from fleet_operator.planning.retry.topics import GroupView
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.group import Redriven, Upgrade


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupFacts:
    """Everything that a ConsumerGroup's status depends on, besides its previous status and the time.

    - `cluster`: the problem when the KafkaCluster does not exist or cannot be used.
    - `view`: the Kafka side.
    - `rollout`, `scale`, `image`: the decisions of this reconcile; `revision` is the hash of the wanted revision, None
      while none can be planned.
    - `turn`: what the fleet takes over now of what changed outside of it, or why not; `upgrade` is its last one, and
      `connection` the digest of the connection that the wanted revision has, None while none can be planned.
    - `kept`: the wanted revision is one that another version of the operator rendered.
    - `parts`: the workers as found; `workers` are the reports of those that answered.
    - `refusal`: set when the API server refused a child.
    - `topic_problem`: set when a managed topic cannot be used, or not be changed as wanted.
    - `retry`: the wanted retries, None for a group without.
    - `hold`: the OffsetReset for which no main worker may run.
    - `redriven`: what the group's finished Redrives have found.
    - `expiry`: the decision about the commits of an empty group.
    """

    group: ConsumerGroup
    cluster: KafkaCluster | Problem
    view: GroupView
    rollout: RolloutDecision
    scale: ScaleDecision
    image: WorkerImage
    parts: Mapping[Part, FleetPart]
    revision: str | None = None
    kept: bool = False
    turn: Turn = NO_TURN
    upgrade: Upgrade | None = None
    connection: str | None = None
    workers: tuple[WorkerObservation, ...] = ()
    refusal: Problem | None = None
    topic_problem: Problem | None = None
    retry: RetryIntent | None = None
    hold: Hold | None = None
    redriven: Redriven | None = None
    expiry: ExpiryDecision = NOTHING_KNOWN

    @property
    def observation(self) -> ClusterObservation | None:
        return self.view.observation

    @property
    def observed_group(self) -> GroupObservation | None:
        """The Kafka group as observed; None when it could not be: its last values stay in the status."""
        return self.view.observed

    @property
    def fleet(self) -> FleetFacts | None:
        return self.parts[MAIN].fleet

    @property
    def pods(self) -> tuple[PodFacts, ...]:
        return self.parts[MAIN].workers

    @property
    def retry_pods(self) -> tuple[PodFacts, ...]:
        return self.parts[RETRY].workers

    @property
    def all_pods(self) -> tuple[PodFacts, ...]:
        return tuple(pod for part in self.parts.values() for pod in part.workers)

    @property
    def open_breakers(self) -> tuple[str, ...]:
        """Pods whose breaker is open. While there are any, lag says nothing about load, and a partition that does not
        move is not stuck."""
        return tuple(sorted(worker.pod for worker in self.workers if worker.breaker_open))

    @property
    def retries_kept(self) -> Kept:
        """Until when what waits in retry topics is safe."""
        retry = self.observed_group.retry if self.observed_group is not None else None
        return NOTHING_WAITS if retry is None else judge(self.group, retry, self.topic_problem)

    @property
    def failed_topic_id(self) -> str | None:
        return failed_topic_id(self.group, self.observation)


def failed_topic_id(group: ConsumerGroup | None, observation: ClusterObservation | None) -> str | None:
    """The id of a group's failed topic; None while unknown."""
    if group is None or observation is None:
        return None
    topic = observation.topics.get(naming.failed_topic(group.group_id))
    return topic.topic_id if topic is not None else None
