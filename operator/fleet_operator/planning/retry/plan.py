"""What is to be done for a group's retries: what its workers are told, how many retry workers run which revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.fleet.rollout import FleetFacts, PodFacts
from fleet_operator.planning.observation import ClusterObservation, RetryObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.publication import SUPERSEDED_S, next_publication
from fleet_operator.planning.retry.records import Published
from fleet_operator.planning.retry.scaling import (
    EMPTY_S,
    RetryLoad,
    RetryMemory,
    RetryScale,
    busy,
    decide_retry_scale,
    recall,
    remember,
)
from fleet_operator.planning.retry.topics import TopicsPlan, plan_topics
from fleet_operator.planning.source_topics import partition_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryFacts:
    """What the plan depends on. `fleet` and `pods` are the retry workers as found; `changed_at` and `memory` as in
    `retry_scaling`; `stopped` when no workers at all should run; `breaker_open` as the workers say, None when some of
    them say nothing. `fed` is whether
    anybody is there who may still write to the flow: main workers that know retries, or a Redrive; `reached` whether
    all of these workers are ready, so that they read what they are told."""

    group: ConsumerGroup
    intent: RetryIntent
    published: Published | None
    observation: ClusterObservation | None
    fleet: FleetFacts | None = None
    pods: tuple[PodFacts, ...] = ()
    changed_at: float | None = None
    memory: RetryMemory = field(default_factory=RetryMemory)
    stopped: bool = False
    breaker_open: bool | None = False
    fed: bool = False
    reached: bool = True

    @property
    def seen(self) -> RetryObservation | None:
        """The retry flow as just seen; None when it could not be asked."""
        return seen_flow(self.group, self.observation)


def seen_flow(group: ConsumerGroup, observation: ClusterObservation | None) -> RetryObservation | None:
    """A group's retry flow as just seen; None when it could not be asked: what was known before proves nothing."""
    if observation is None or not observation.reachable:
        return None
    found = observation.groups.get(group.group_id)
    if found is None or found.error or found.retry is None or found.retry.error:
        return None
    return found.retry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlan:
    """What to do. `publication` is what workers should be told, None as long as there is nothing to tell; `problem`
    then says why. `scale` is the wanted count of retry workers; `over` says that the spec wants no retries and nothing
    waits any more, so that the retry workers can go. `memory` is to be given back at the next visit."""

    publication: Published | None
    problem: Problem | None
    scale: RetryScale
    over: bool
    memory: RetryMemory
    fleet: FleetFacts | None
    pods: tuple[PodFacts, ...]


def plan_retry(facts: RetryFacts, now: float) -> RetryPlan:
    """The plan; `now` in epoch seconds."""
    group, seen = facts.group, facts.seen
    topics = plan_topics(group, facts.intent, partition_counts(group, facts.observation), facts.observation)
    publication = next_publication(
        group,
        facts.intent,
        facts.published,
        topics_ready=topics.ready is True,
        partitions=_partitions(facts),
        seen=seen,
        now=now,
        reached=facts.reached,
    )
    ending_since = publication.ending_since if publication else None
    over = (
        ending_since is not None
        and not facts.fed
        and seen is not None
        and seen.observed_at >= ending_since + SUPERSEDED_S
        and seen.waiting == 0
    )
    load = _load(facts, publication)
    memory = remember(facts.memory, load, now)
    scale = decide_retry_scale(recall(facts.memory, load), now)
    if facts.fleet is not None and scale.replicas < facts.fleet.replicas and busy(load, now):
        memory = replace(memory, shrunk_at=now)
    return RetryPlan(
        publication=publication,
        problem=_problem(facts, topics) if publication is None else None,
        scale=RetryScale(0, "no workers are wanted") if facts.stopped else scale,
        over=over,
        memory=memory,
        fleet=facts.fleet,
        pods=facts.pods,
    )


def retry_target(
    fleet: FleetFacts | None, target: str | None, templates: Mapping[str, Mapping[str, Any]], *, ending: bool
) -> str | None:
    """The revision that retry workers should run, of those whose pod template is known; None leaves them as they are.

    That of the main workers, if it knows retries. Else (they are going away, or the main workers went back to a
    revision from before) the one that the retry workers have.
    """
    if not ending and target is not None and target in templates and has_retries(templates[target]):
        return target
    return fleet.revision if fleet is not None and fleet.revision in templates else None


def _load(facts: RetryFacts, publication: Published | None) -> RetryLoad:
    seen, observation = facts.seen, facts.observation
    # Of a flow that could be asked only in part, what is known to be due still has to be handled.
    known = observation.groups.get(facts.group.group_id) if observation is not None and observation.reachable else None
    part = known.retry if known is not None else None
    retention_s = observation.offsets_retention_s if observation is not None else None
    retry = facts.group.spec.retry
    return RetryLoad(
        least=retry.worker.min_replicas if retry else 0,
        most=retry.worker.max_replicas if retry else None,
        partitions=publication.partitions if publication else None,
        current=facts.fleet.replicas if facts.fleet else None,
        counted=seen is not None and seen.counted,
        due_lag=seen.due_lag if seen else None,
        oldest_due_at=part.oldest_due_at if part else None,
        next_due_at=part.next_due_at if part else None,
        changed_at=facts.changed_at,
        held=facts.breaker_open is True,
        unsure=facts.breaker_open is None and facts.intent.may_pause,
        shortest_delay_s=_shortest_delay_s(facts.intent) if facts.fed and retry is not None else None,
        empty=seen is not None and seen.state == "Empty",
        empty_s=retention_s / 2 if retention_s is not None else EMPTY_S,
    )


def _shortest_delay_s(intent: RetryIntent) -> float | None:
    return min((float(naming.parse_delay(delay)) for delay in intent.delays), default=None)


def _partitions(facts: RetryFacts) -> int | None:
    """What every managed topic has at least: a record without a key must find its partition in each of them."""
    observation, group_id = facts.observation, facts.group.group_id
    if observation is None or not observation.reachable:
        return None
    names = [naming.retry_topic(group_id, delay) for delay in facts.intent.delays]
    found = [observation.topics.get(name) for name in (*names, naming.redrive_topic(group_id))]
    counts = [topic.partitions for topic in found if topic is not None and topic.error is None and topic.partitions]
    return min(counts) if counts and len(counts) == len(found) else None


def _problem(facts: RetryFacts, topics: TopicsPlan) -> Problem:
    """Why workers cannot be told of any policy yet, so that none may start."""
    observation = facts.observation
    if facts.intent.wanted is None:
        assert facts.intent.problem is not None, "no content has a reason"
        return facts.intent.problem
    if observation is None:
        return Problem(conditions.NOT_YET_OBSERVED, "Kafka has not been asked yet; retry topics come before workers")
    if not observation.reachable:
        return Problem(observation.reason or conditions.BROKER_UNREACHABLE, observation.message)
    if topics.problem is not None:
        return topics.problem
    if facts.intent.predecessors is None:
        return Problem(conditions.NOT_YET_OBSERVED, "whether records wait from before has not been looked for yet")
    return Problem(conditions.TOPIC_NOT_CREATED, "the retry topics are being made; workers start when all are there")
