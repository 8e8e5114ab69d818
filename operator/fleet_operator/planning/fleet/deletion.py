"""Deletion of a ConsumerGroup: the steps in Kafka before its object may be removed, and their deadlines.

The object has a finalizer only if its spec requires such steps. Each step follows from the present state, so if the
operator is killed, its successor continues at the same or the next step. Two deadlines limit the time for which an
unreachable broker or a terminating namespace can keep the object. If the KafkaCluster is missing, the steps
are skipped. If a drain times out, topics with waiting records are kept: a kept topic can still be deleted, but deleted
records cannot be recovered.

Decision: docs/decisions/0017-policy-revisions.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, Deletion
from fleet_operator.planning.observation import RetryObservation

UNDO_S: Final = 120.0
"""Seconds in addition to the spec's drain timeout. In this time, the workers are stopped, and topics and groups are
deleted in Kafka."""

CLUSTER_HOLD_S: Final = 60.0
"""Seconds for which a deleted KafkaCluster is kept while groups that are not being deleted use it. The command or the
namespace deletion that deleted the KafkaCluster may delete these groups next. If a group is being deleted, its
KafkaCluster is kept until the group is removed."""

POLL_S: Final = 2.0
"""Seconds between polls of a deletion in progress, in case an event was missed."""


class DeletionPhase(StrEnum):
    DRAIN = "Drain"  # main workers stop, retry workers continue until no record waits in retry topics
    STOP = "Stop"  # all workers stop
    UNDO = "Undo"  # topics and groups are deleted
    LEAVE = "Leave"  # nothing can or should be done in Kafka; the object may be removed


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFacts:
    """Inputs of the decision about a deletion.

    - `deleted_at`: epoch seconds. `can_drain`: retry workers can run. `redrives`: number of Redrives that may write.
    - `reachable`: the KafkaCluster's brokers answer, with the right cluster id.
    - `owner`: False if another ConsumerGroup owns the Kafka group.
    - `heir`: the ConsumerGroup that takes over the Kafka group; empty without one. `heir_unsure`: it is still unknown
      whether a ConsumerGroup takes over the Kafka group.
    - `orphaned`: the deletion leaves the fleet running, for example after `kubectl delete --cascade=orphan`.
    """

    deletion: Deletion
    deleted_at: float
    cluster_known: bool
    reachable: bool
    owner: bool
    heir: str = ""
    heir_unsure: bool = False
    orphaned: bool = False
    has_retries: bool
    can_drain: bool
    workers: int
    retry_workers: int
    redrives: int = 0
    seen: RetryObservation | None


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """The next step of a deletion. `given_up`: the reason why topics and groups stay in Kafka; empty if they are
    deleted."""

    phase: DeletionPhase
    given_up: str = ""


def wants_finalizer(deletion: Deletion) -> bool:
    return deletion.group == "Delete" or deletion.retry_topics != "Keep"


def decide_deletion(facts: DeletionFacts, now: float) -> DeletionStep:
    if not facts.owner:
        return DeletionStep(DeletionPhase.LEAVE)
    if facts.heir:
        return DeletionStep(DeletionPhase.LEAVE, f"ConsumerGroup {facts.heir} owns these topics and groups now")
    if facts.orphaned:
        return DeletionStep(
            DeletionPhase.LEAVE, "the fleet was kept (--cascade=orphan) and uses these topics and groups"
        )
    if not facts.cluster_known:
        return DeletionStep(DeletionPhase.LEAVE, "the KafkaCluster does not exist")
    drain_until = facts.deleted_at + facts.deletion.timeout_seconds
    if now >= drain_until + UNDO_S:
        why = "the Kafka cluster does not answer" if not facts.reachable else "workers or groups did not stop in time"
        return DeletionStep(DeletionPhase.LEAVE, why)
    if _draining(facts) and now < drain_until:
        return DeletionStep(DeletionPhase.DRAIN)
    if facts.workers or facts.retry_workers or facts.redrives or facts.heir_unsure:
        return DeletionStep(DeletionPhase.STOP)
    # While Kafka does not answer, the fleet stays stopped until Kafka answers or the deadline passes.
    return DeletionStep(DeletionPhase.UNDO if facts.reachable else DeletionPhase.STOP)


def _draining(facts: DeletionFacts) -> bool:
    """True while retry workers must run: records wait in retry topics, or main workers and Redrives may add records."""
    if facts.deletion.retry_topics != "Drain" or not facts.has_retries or not facts.can_drain:
        return False
    seen = facts.seen
    drained = seen is not None and seen.observed_at >= facts.deleted_at and seen.waiting == 0
    return facts.workers > 0 or facts.redrives > 0 or not drained


def doomed_topics(group: ConsumerGroup, topics: Iterable[str]) -> tuple[str, ...]:
    """The topics to delete, out of all `topics` of the cluster. They are the group's retry topics (also for delays
    removed from the policy) and its redrive topic. If the spec's `retryTopics` is Delete, its failed topic is also
    deleted."""
    policy = group.spec.deletion.retry_topics
    if policy == "Keep":
        return ()
    whole = {
        naming.redrive_topic(group.group_id),
        *((naming.failed_topic(group.group_id),) if policy == "Delete" else ()),
    }
    return tuple(sorted(topic for topic in topics if topic in whole or _is_retry_topic(group, topic)))


def _is_retry_topic(group: ConsumerGroup, topic: str) -> bool:
    """True for a retry topic of this group. The prefix alone does not prove this, because another group's id may begin
    with this group's id. So the rest of the name must be a delay."""
    prefix = naming.retry_topic(group.group_id, "")
    if not topic.startswith(prefix):
        return False
    try:
        naming.parse_delay(topic.removeprefix(prefix))
    except ValueError:
        return False
    return True


def doomed_groups(group: ConsumerGroup, *, had_retries: bool) -> tuple[str, ...]:
    """The Kafka groups to delete. If the fleet never had retries (not `had_retries`), a Kafka group with the retry
    group's id may belong to another fleet, and is not deleted."""
    if group.spec.deletion.group == "Keep":
        return ()
    return (group.group_id, *((naming.retry_group(group.group_id),) if had_retries else ()))
