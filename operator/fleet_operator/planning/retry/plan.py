"""Plan for a group's retries: the publication for its workers, and the number and revision of retry workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.fleet.parts import RETRY, FleetPart
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, RevisionRecord
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry import scaling
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.publication import SUPERSEDED_S, FlowFacts, next_publication
from fleet_operator.planning.retry.records import Published
from fleet_operator.planning.retry.topics import GroupView, gone_topics, missing_topics
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.group import RevisionState

LEAVING_POLL_S: Final = 30.0
"""Interval of the plans while a revision, a delay or the retries as a whole are on their way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryFacts:
    """Everything that the plan depends on.

    - `view`: the group on its own Kafka cluster, empty while another cluster answers.
    - `workers`: the retry workers as found.
    - `stopped`: no workers at all may run.
    - `breaker_open`: as the workers report; None while some that have a breaker did not answer.
    - `fed`: somebody may still write to the flow: main workers that know retries, or a Redrive.
    - `reached`: all of these workers are ready, so that they read what is published.
    """

    group: ConsumerGroup
    intent: RetryIntent
    published: Published | None
    view: GroupView
    workers: FleetPart = field(default_factory=lambda: FleetPart(part=RETRY))
    memory: scaling.RetryMemory = field(default_factory=scaling.RetryMemory)
    stopped: bool = False
    breaker_open: bool | None = False
    fed: bool = False
    reached: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlan:
    """The decision.

    `publication` is None as long as there is nothing to publish; `problem` says why. `scale` is the wanted number of
    retry workers. `over`: the spec wants no retries and nothing waits, as two observations in a row saw, so the retry
    workers can go. `waits`: a record is known to wait. `memory` is for the next plan.
    """

    publication: Published | None
    problem: Problem | None
    scale: ScaleDecision
    over: bool
    waits: bool
    memory: scaling.RetryMemory

    @property
    def requeue_after(self) -> float | None:
        """Seconds until the next plan if nothing changes before; what is on its way out leaves with time."""
        published = self.publication
        leaving = published is not None and (
            published.ending_since is not None
            or len(published.known) > 1
            or bool(published.retiring.keys() - set(published.drained))
        )
        wishes = (self.scale.requeue_after, LEAVING_POLL_S if leaving else None)
        return min((wish for wish in wishes if wish is not None), default=None)


def plan_retry(facts: RetryFacts, now: float) -> RetryPlan:
    """The plan; `now` in epoch seconds."""
    seen = facts.view.flow
    flow = FlowFacts(
        topics_ready=facts.view.topics.ready is True, partitions=_partitions(facts), seen=seen, reached=facts.reached
    )
    publication = next_publication(facts.group, facts.intent, facts.published, flow, now)
    ending_since = publication.ending_since if publication else None
    drained_at: float | None = None
    over = False
    if (
        ending_since is not None
        and not facts.fed
        and seen is not None
        and seen.observed_at >= ending_since + SUPERSEDED_S
        and seen.waiting == 0
    ):
        # Commits and ends of one look are asked at once. A record that hops meanwhile is counted in neither topic; the
        # ends of the next look were asked after these commits.
        before = facts.memory.drained_at
        drained_at = before if before is not None else seen.observed_at
        over = seen.observed_at > drained_at
    load = _load(facts, publication)
    kept = replace(facts.memory.kept, most=load.most)
    scale, memory = scaling.decide_retry_scale(load, replace(facts.memory, drained_at=drained_at, kept=kept), now)
    scale = ScaleDecision(replicas=0, reason="no workers are wanted") if facts.stopped else scale
    return RetryPlan(
        publication=publication,
        problem=_problem(facts) if publication is None else None,
        scale=scale,
        over=over,
        waits=load.oldest_at is not None or bool(seen is not None and seen.waiting),
        memory=memory.decided(scale.replicas, now),
    )


def retry_target(
    fleet: FleetFacts | None,
    target: str | None,
    templates: Mapping[str, Mapping[str, Any]],
    *,
    ending: bool,
    last: str | None = None,
) -> str | None:
    """The revision for the retry workers, of those whose pod template is known; None leaves them as they are.

    It is that of the main workers if it knows retries. Otherwise (retries are ending, or the main workers went back to
    a revision without them) it is the one that the retry workers have, and `last` for workers that are gone.
    """
    if not ending and target is not None and target in templates and has_retries(templates[target]):
        return target
    if fleet is not None:
        return fleet.revision if fleet.revision in templates else None
    return last if last is not None and last in templates and has_retries(templates[last]) else None


def last_revision(plan: RetryPlan, records: Iterable[RevisionRecord]) -> str | None:
    """The newest revision that knows retries, as long as these are ending and not over.

    Somebody may delete the retry workers while records wait for them: they are made again at this revision, so its
    record has to stay.
    """
    if plan.over or plan.publication is None or plan.publication.ending_since is None:
        return None
    able = [record for record in records if record.complete and has_retries(record.pod_template)]
    newest = max(able, key=lambda each: (each.state is RevisionState.GOOD, each.since or 0.0, each.hash), default=None)
    return newest.hash if newest is not None else None


def used_revisions(
    plan: RetryPlan | None, running: frozenset[str], records: Iterable[RevisionRecord]
) -> frozenset[str]:
    """The revisions whose records retry workers need: those that they run, and the one at which they are made again."""
    if plan is None:
        return frozenset()
    last = last_revision(plan, records)
    return running if last is None else running | {last}


def _load(facts: RetryFacts, publication: Published | None) -> scaling.RetryLoad:
    seen, observation = facts.view.flow, facts.view.observation
    # A flow that was observed only in part still shows records that are due: these must be handled.
    known = observation.groups.get(facts.group.group_id) if observation is not None and observation.reachable else None
    part = known.retry if known is not None else None
    retention_s = observation.offsets_retention_s if observation is not None else None
    retry, intent, fleet = facts.group.spec.retry, facts.intent, facts.workers.fleet
    in_use = (delay for delay in intent.delays if delay not in intent.unused)
    shortest_s = min((float(naming.parse_delay(delay)) for delay in in_use), default=None)
    return scaling.RetryLoad(
        least=retry.worker.min_replicas if retry else 0,
        # The bound outlives spec.retry: who limits tenants by it must not lose it where retries end.
        most=retry.worker.max_replicas if retry else facts.memory.kept.most,
        partitions=publication.partitions if publication else None,
        counted=seen is not None and seen.counted,
        lag=seen.due_lag if seen else None,
        oldest_at=part.oldest_due_at if part else None,
        next_at=part.next_due_at if part else None,
        current=fleet.replicas if fleet else None,
        changed_at=facts.memory.kept.changed_at,
        held=facts.breaker_open is True,
        unsure=facts.breaker_open is None and intent.may_pause,
        shortest_delay_s=shortest_s if facts.fed and retry is not None else None,
        empty=seen is not None and seen.state == "Empty",
        empty_s=retention_s / 2 if retention_s is not None else scaling.EMPTY_S,
    )


def _partitions(facts: RetryFacts) -> int | None:
    """The smallest partition count of the topics that retry workers read; None unless all of them are known."""
    group_id, observation = facts.group.group_id, facts.view.observation
    if observation is None or not observation.reachable:
        return None
    names = {naming.retry_topic(group_id, delay) for delay in facts.intent.delays}
    names -= gone_topics(facts.group, facts.intent, observation)
    found = [observation.topics.get(name) for name in (*names, naming.redrive_topic(group_id))]
    counts = [topic.partitions for topic in found if topic is not None and topic.error is None and topic.partitions]
    return min(counts) if counts and len(counts) == len(found) else None


def _problem(facts: RetryFacts) -> Problem:
    """The reason why no policy can be published, so that no worker may start."""
    observation, topics = facts.view.observation, facts.view.topics
    if facts.intent.wanted is None:
        assert facts.intent.problem is not None, "an intent without content has a problem"
        return facts.intent.problem
    if observation is None:
        return Problem(
            conditions.NOT_YET_OBSERVED,
            "the Kafka cluster has not been observed yet: workers start when the retry topics exist",
        )
    if not observation.reachable:
        return Problem(observation.reason or conditions.BROKER_UNREACHABLE, observation.message)
    missing = missing_topics(facts.group, facts.view)
    if missing is not None:
        return missing  # the retry topics have as many partitions as these
    if topics.problem is not None:
        return topics.problem
    if not facts.intent.searched:
        return Problem(
            conditions.NOT_YET_OBSERVED,
            "the cluster has not been searched yet for retry topics of an earlier ConsumerGroup with this groupId",
        )
    return Problem(
        conditions.TOPIC_NOT_CREATED, "the retry topics are being created: workers start when all of them exist"
    )
