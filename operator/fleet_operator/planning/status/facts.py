"""The facts from which a ConsumerGroup's status is built."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.fleet.image import WorkerImage
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, Part
from fleet_operator.planning.fleet.rollout import RolloutDecision
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, PodFacts
from fleet_operator.planning.fleet.waves import NO_SLOT, Slot
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
    """Inputs of a ConsumerGroup's status, except its previous status and the time.

    - `cluster`: a Problem if the KafkaCluster does not exist or is unusable.
    - `rollout`, `scale`, `image`: the decisions of this reconcile.
    - `revision`: hash of the wanted revision; None while no revision can be planned.
    - `kept`: True if another version of the operator rendered the wanted revision.
    - `slot`: the changes of the operator or the KafkaCluster that are rolled out to the fleet now, or the reason why
      they wait.
    - `connection`: digest of the wanted revision's connection; None while no revision can be planned.
    - `parts`: the StatefulSet and the pods of each part; `workers`: the reports of the workers that answered.
    - `refusal`: the API server's refusal of a child object; None without a refusal.
    - `topic_problem`: the reason why a managed topic cannot be used, or cannot be changed as wanted; None without one.
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
    slot: Slot = NO_SLOT
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
        """The observation of the Kafka group; None if the observation failed. The status then keeps the last values."""
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
        """Names of the pods with an open breaker. While any breaker is open, lag is no measure of the load, and a
        partition without progress does not count as stuck."""
        return tuple(sorted(worker.pod for worker in self.workers if worker.breaker_open))

    @property
    def retries_kept(self) -> Kept:
        """The content of the condition RetriesKept. It includes the time until which retention does not delete a
        waiting record."""
        retry = self.observed_group.retry if self.observed_group is not None else None
        return NOTHING_WAITS if retry is None else judge(self.group, retry, self.topic_problem)

    @property
    def failed_topic_id(self) -> str | None:
        return failed_topic_id(self.group, self.observation)


def failed_topic_id(group: ConsumerGroup | None, observation: ClusterObservation | None) -> str | None:
    if group is None or observation is None:
        return None
    topic = observation.topics.get(naming.failed_topic(group.group_id))
    return topic.topic_id if topic is not None else None
