"""Deletion of a ConsumerGroup: the steps in Kafka before its object may go, and the deadlines after which they end.

The object has a finalizer only if its spec asks for such steps. Every step follows from what is there now: an operator
that is killed in between finds the same step, or the next one. Two deadlines ensure that neither a dead broker nor a
terminating namespace can keep the object without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, Deletion
from fleet_operator.planning.observation import RetryObservation

UNDO_S: Final = 120.0
"""Time after the spec's timeout for stopping the workers and deleting in Kafka."""

CLUSTER_HOLD_S: Final = 60.0
"""Time for which a deleted KafkaCluster is kept for groups that live: a command or a namespace deletes one object after
the other. A group that is being deleted keeps it until it is gone."""

POLL_S: Final = 2.0
"""Poll interval of a deletion in progress, in case an event was missed."""


class DeletionPhase(StrEnum):
    DRAIN = "Drain"  # the main workers stop, the retry workers go on until nothing waits
    STOP = "Stop"  # all workers stop
    UNDO = "Undo"  # topics and groups are deleted
    LEAVE = "Leave"  # nothing (more) can or should be done


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFacts:
    """Everything a deletion depends on.

    - `deleted_at`: epoch seconds.
    - `cluster_known`: there is a KafkaCluster; `reachable`: its brokers answer, with the right cluster id.
    - `owner`: False for an object whose Kafka group belongs to another one; `heir` is the object that takes over, and
      `heir_unsure` says that there may be one of which it is not known yet.
    - `orphaned`: the fleet goes on without its owner, as after `kubectl delete --cascade=orphan`.
    - `workers`, `retry_workers`: numbers of pods; `redrives`: number of Redrives that may be writing.
    - `can_drain`: retry workers can run.
    - `seen`: the observed retry flow, None without one.
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
    """The next step. `given_up` is the reason why something is left undone, empty otherwise."""

    phase: DeletionPhase
    given_up: str = ""


def wants_finalizer(deletion: Deletion) -> bool:
    """True if the deletion has steps in Kafka."""
    return deletion.group == "Delete" or deletion.retry_topics != "Keep"


def decide_deletion(facts: DeletionFacts, now: float) -> DeletionStep:
    if not facts.owner:
        return DeletionStep(DeletionPhase.LEAVE)
    if facts.heir:
        return DeletionStep(DeletionPhase.LEAVE, f"ConsumerGroup {facts.heir} owns them from now on")
    if facts.orphaned:
        return DeletionStep(DeletionPhase.LEAVE, "its fleet was kept (--cascade=orphan), and uses them")
    if not facts.cluster_known:
        return DeletionStep(DeletionPhase.LEAVE, "its KafkaCluster does not exist")
    drain_until = facts.deleted_at + facts.deletion.timeout_seconds
    if now >= drain_until + UNDO_S:
        why = "the Kafka cluster does not answer" if not facts.reachable else "workers or groups did not stop in time"
        return DeletionStep(DeletionPhase.LEAVE, why)
    if _draining(facts) and now < drain_until:
        return DeletionStep(DeletionPhase.DRAIN)
    if facts.workers or facts.retry_workers or facts.redrives or facts.heir_unsure:
        return DeletionStep(DeletionPhase.STOP)
    # While Kafka does not answer, an attempt fails and is repeated until the deadline.
    return DeletionStep(DeletionPhase.UNDO if facts.reachable else DeletionPhase.STOP)


def _draining(facts: DeletionFacts) -> bool:
    """True if retry workers are still needed: main workers and Redrives may still write records to retry topics."""
    if facts.deletion.retry_topics != "Drain" or not facts.has_retries or not facts.can_drain:
        return False
    seen = facts.seen
    drained = seen is not None and seen.observed_at >= facts.deleted_at and seen.waiting == 0
    return facts.workers > 0 or facts.redrives > 0 or not drained


def doomed_topics(group: ConsumerGroup, topics: Iterable[str]) -> tuple[str, ...]:
    """The topics to delete, of all topics of the cluster: the group's retry topics, also those of removed delays, and
    its redrive topic; with Delete also the failed topic."""
    wish = group.spec.deletion.retry_topics
    if wish == "Keep":
        return ()
    whole = {
        naming.redrive_topic(group.group_id),
        *((naming.failed_topic(group.group_id),) if wish == "Delete" else ()),
    }
    return tuple(sorted(topic for topic in topics if topic in whole or _is_retry_topic(group, topic)))


def _is_retry_topic(group: ConsumerGroup, topic: str) -> bool:
    """True if a topic is a retry topic of this group. The id of another group may begin like the topic's name."""
    prefix = naming.retry_topic(group.group_id, "")
    if not topic.startswith(prefix):
        return False
    try:
        naming.parse_delay(topic.removeprefix(prefix))
    except ValueError:
        return False
    return True


def doomed_groups(group: ConsumerGroup, *, had_retries: bool) -> tuple[str, ...]:
    """The Kafka groups to delete. A group that never had retries has no retry group: the name may be another's."""
    if group.spec.deletion.group == "Keep":
        return ()
    return (group.group_id, *((naming.retry_group(group.group_id),) if had_retries else ()))
