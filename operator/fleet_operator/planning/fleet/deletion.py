"""How a deleted ConsumerGroup leaves: what must be done in Kafka before its object may go, and when that is given up.

The object carries a finalizer only if its spec asks for something to be done. Every step follows from what is there
now: an operator that is killed in between finds the same step, or the next one. Two deadlines bound it all, so that
neither a broker that is gone nor a namespace that is being emptied can keep the object for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, Deletion
from fleet_operator.planning.observation import RetryObservation

FINALIZER: Final = "consumerfleet.io/retry-topics"
FOREGROUND: Final = "foregroundDeletion"
"""Kubernetes' own finalizer: the children are being removed by others already."""

UNDO_S: Final = 120.0
"""How long after the spec's time-out stopping the workers and deleting in Kafka may still take."""

POLL_S: Final = 2.0
"""How often a deletion in motion is looked at, in case an event was missed."""


class DeletionPhase(StrEnum):
    """Where a deletion stands."""

    DRAIN = "Drain"  # the main workers stop, the retry workers go on until nothing waits
    STOP = "Stop"  # all workers stop
    UNDO = "Undo"  # topics and groups are deleted
    LEAVE = "Leave"  # nothing (more) can or should be done


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFacts:
    """What a deletion depends on. `deleted_at` and `now` in epoch seconds.

    `reachable` says whether the Kafka cluster answers, and is the one that it should be; `cluster_known` whether there
    is a KafkaCluster at all. `owner` is False for an object whose Kafka group belongs to another one; `heir` names the
    object that takes over from this one, empty without such. `workers` and `retry_workers` count pods, `redrives` the
    Redrives that may be writing; `can_drain` says whether retry workers can run. `seen` is the newest look at the retry
    flow, None when it could not be asked or when there is none (`has_retries` False).
    """

    deletion: Deletion
    deleted_at: float
    cluster_known: bool
    reachable: bool
    owner: bool
    heir: str = ""
    has_retries: bool
    can_drain: bool
    workers: int
    retry_workers: int
    redrives: int = 0
    seen: RetryObservation | None


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """What to do now. `given_up` says why something was left undone, empty otherwise."""

    phase: DeletionPhase
    given_up: str = ""


def wants_finalizer(deletion: Deletion) -> bool:
    """Whether something must be done in Kafka when the object goes."""
    return deletion.group == "Delete" or deletion.retry_topics != "Keep"


def decide_deletion(facts: DeletionFacts, now: float) -> DeletionStep:
    """The step for what was found."""
    if not facts.owner:
        return DeletionStep(DeletionPhase.LEAVE)
    if facts.heir:
        return DeletionStep(DeletionPhase.LEAVE, f"they are those of ConsumerGroup {facts.heir} from now on")
    if not facts.cluster_known:
        return DeletionStep(DeletionPhase.LEAVE, "its KafkaCluster does not exist (any more)")
    drain_until = facts.deleted_at + facts.deletion.timeout_seconds
    if now >= drain_until + UNDO_S:
        why = "Kafka does not answer" if not facts.reachable else "the workers or their groups would not go in time"
        return DeletionStep(DeletionPhase.LEAVE, why)
    if _draining(facts) and now < drain_until:
        return DeletionStep(DeletionPhase.DRAIN)
    if facts.workers or facts.retry_workers or facts.redrives:
        return DeletionStep(DeletionPhase.STOP)
    # While Kafka does not answer, an attempt fails and is repeated until the deadline.
    return DeletionStep(DeletionPhase.UNDO if facts.reachable else DeletionPhase.STOP)


def _draining(facts: DeletionFacts) -> bool:
    """Whether retry workers are still needed: what main workers and Redrives have in hand may yet come to wait."""
    if facts.deletion.retry_topics != "Drain" or not facts.has_retries or not facts.can_drain:
        return False
    seen = facts.seen
    drained = seen is not None and seen.observed_at >= facts.deleted_at and seen.waiting == 0
    return facts.workers > 0 or facts.redrives > 0 or not drained


def doomed_topics(group: ConsumerGroup, topics: Iterable[str]) -> tuple[str, ...]:
    """Those of a cluster's topics that are to be deleted: the group's retry topics, also those of delays that were
    removed long ago, and its redrive topic; with Delete the failed topic too."""
    wish = group.spec.deletion.retry_topics
    if wish == "Keep":
        return ()
    whole = {
        naming.redrive_topic(group.group_id),
        *((naming.failed_topic(group.group_id),) if wish == "Delete" else ()),
    }
    return tuple(sorted(topic for topic in topics if topic in whole or _is_retry_topic(group, topic)))


def _is_retry_topic(group: ConsumerGroup, topic: str) -> bool:
    """Whether a topic is a retry topic of this very group: another group's id may begin like the topic's name."""
    prefix = naming.retry_topic(group.group_id, "")
    if not topic.startswith(prefix):
        return False
    try:
        naming.parse_delay(topic.removeprefix(prefix))
    except ValueError:
        return False
    return True


def doomed_groups(group: ConsumerGroup) -> tuple[str, ...]:
    """The Kafka groups to delete."""
    if group.spec.deletion.group == "Keep":
        return ()
    return (group.group_id, naming.retry_group(group.group_id))
