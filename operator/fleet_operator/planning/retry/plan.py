"""Plan for a group's retries: the published policies for its workers, and the number and revision of retry workers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX, ConsumerGroup
from fleet_operator.planning.fleet.parts import RETRY, FleetPart
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, RevisionRecord
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry import scaling
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.published_policies import SUPERSEDED_S, FlowFacts, next_published
from fleet_operator.planning.retry.records import Published
from fleet_operator.planning.retry.topics import GroupView, gone_topics, missing_topics
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.group import RevisionState
from fleet_operator.planning.times import soonest

LEAVING_POLL_S: Final = 30.0
"""Seconds between plans while a revision, a delay or all retries are being removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryFacts:
    """Inputs of the plan.

    - `view`: the group on its own Kafka cluster; empty while another cluster answers.
    - `stopped`: the fleet must have no workers.
    - `breaker_open`: True if a worker reports an open breaker; None while a worker with a breaker does not answer.
    - `fed`: True while main workers or a Redrive may still write to the retry topics.
    - `reached`: True if all main workers that write to the retry topics are ready, so they use the published policies.
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
    """The decision about a group's retries.

    - `published`: the policies to publish; None while nothing can be published, for the reason `problem`.
    - `scale`: the number of retry workers.
    - `over`: True if the spec wants no retries, and two consecutive observations found no waiting record. The retry
      workers can then be removed.
    - `waits`: at least one record is known to wait.
    """

    published: Published | None
    problem: Problem | None
    scale: ScaleDecision
    over: bool
    waits: bool
    memory: scaling.RetryMemory

    @property
    def requeue_after(self) -> float | None:
        """Seconds until the next plan if nothing changes; at most `LEAVING_POLL_S` while a removal is in progress."""
        published = self.published
        leaving = published is not None and (
            published.ending_since is not None
            or len(published.known) > 1
            or bool(published.retiring.keys() - set(published.drained))
        )
        return soonest(self.scale.requeue_after, LEAVING_POLL_S if leaving else None)


def plan_retry(facts: RetryFacts, now: float) -> RetryPlan:
    seen = facts.view.flow
    flow = FlowFacts(
        topics_ready=facts.view.topics.ready is True, partitions=_partitions(facts), seen=seen, reached=facts.reached
    )
    published = next_published(facts.group, facts.intent, facts.published, flow, now)
    ending_since = published.ending_since if published else None
    drained_at: float | None = None
    over = False
    if (
        ending_since is not None
        and not facts.fed
        and seen is not None
        and seen.observed_at >= ending_since + SUPERSEDED_S
        and seen.waiting == 0
    ):
        # A poll reads commits and end offsets at slightly different times. So it may miss a record that is published to
        # the next retry topic in between. The second poll sees this record, because it reads end offsets after the
        # first poll read commits.
        before = facts.memory.drained_at
        drained_at = before if before is not None else seen.observed_at
        over = seen.observed_at > drained_at
    load = _load(facts, published)
    kept = replace(facts.memory.kept, most=load.most)
    scale, memory = scaling.decide_retry_scale(load, replace(facts.memory, drained_at=drained_at, kept=kept), now)
    scale = ScaleDecision(replicas=0, reason="no workers are wanted") if facts.stopped else scale
    return RetryPlan(
        published=published,
        problem=_problem(facts) if published is None else None,
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
    """Choose the retry workers' revision from `templates`; None leaves the workers as they are.

    Normally, the main workers' `target` is used. It is not used if retries are ending, or if `target` has no retries,
    for example after a rollback. The retry workers then keep their present revision or, without retry workers, `last`
    is used."""
    if not ending and target is not None and target in templates and has_retries(templates[target]):
        return target
    if fleet is not None:
        return fleet.revision if fleet.revision in templates else None
    return last if last is not None and last in templates and has_retries(templates[last]) else None


def last_revision(plan: RetryPlan, records: Iterable[RevisionRecord]) -> str | None:
    """While retries are ending, return the newest good revision with retries. If no such revision is good, return the
    newest revision with retries. None if retries are not ending, or if no revision has retries.

    The revision's record must be kept. If somebody deletes the retry workers' StatefulSet while records wait, the
    operator creates the StatefulSet again with this revision."""
    if plan.over or plan.published is None or plan.published.ending_since is None:
        return None
    able = [record for record in records if record.complete and has_retries(record.pod_template)]
    newest = max(able, key=lambda each: (each.state is RevisionState.GOOD, each.since or 0.0, each.hash), default=None)
    return newest.hash if newest is not None else None


def used_revisions(
    plan: RetryPlan | None, running: frozenset[str], records: Iterable[RevisionRecord]
) -> frozenset[str]:
    """Return the revisions whose records must be kept for the retry workers: the `running` ones and `last_revision`."""
    if plan is None:
        return frozenset()
    last = last_revision(plan, records)
    return running if last is None else running | {last}


def _load(facts: RetryFacts, published: Published | None) -> scaling.RetryLoad:
    seen, observation = facts.view.flow, facts.view.observation
    # Even a partial observation of the retry topics may show due records, and due records must be handled.
    known = observation.groups.get(facts.group.group_id) if observation is not None and observation.reachable else None
    part = known.retry if known is not None else None
    retention_s = observation.offsets_retention_s if observation is not None else None
    retry, intent, fleet = facts.group.spec.retry, facts.intent, facts.workers.fleet
    in_use = (delay for delay in intent.delays if delay not in intent.unused)
    shortest_s = min((float(naming.parse_delay(delay)) for delay in in_use), default=None)
    return scaling.RetryLoad(
        least=retry.worker.min_replicas if retry else 0,
        # The limit is remembered after spec.retry is removed, because it still applies while retries end.
        most=retry.worker.max_replicas if retry else facts.memory.kept.most,
        partitions=published.partitions if published else None,
        counted=seen is not None and seen.counted,
        lag=seen.due_lag if seen else None,
        oldest_at=part.oldest_due_at if part else None,
        next_at=part.next_due_at if part else None,
        current=min(fleet.replicas, REPLICAS_MAX) if fleet else None,
        changed_at=facts.memory.kept.changed_at,
        held=facts.breaker_open is True,
        unsure=facts.breaker_open is None and intent.may_pause,
        shortest_delay_s=shortest_s if facts.fed and retry is not None else None,
        empty=seen is not None and seen.state == "Empty",
        empty_s=retention_s / 2 if retention_s is not None else scaling.EMPTY_S,
    )


def _partitions(facts: RetryFacts) -> int | None:
    """Return the smallest partition count of the topics that retry workers read; None unless all counts are known."""
    group_id, observation = facts.group.group_id, facts.view.observation
    if observation is None or not observation.reachable:
        return None
    names = {naming.retry_topic(group_id, delay) for delay in facts.intent.delays}
    names -= gone_topics(facts.group, facts.intent, observation)
    found = [observation.topics.get(name) for name in (*names, naming.redrive_topic(group_id))]
    counts = [topic.partitions for topic in found if topic is not None and topic.error is None and topic.partitions]
    return min(counts) if counts and len(counts) == len(found) else None


def _problem(facts: RetryFacts) -> Problem:
    """Return the reason why no policy can be published and no worker may start."""
    observation, topics = facts.view.observation, facts.view.topics
    if facts.intent.wanted is None:
        assert facts.intent.problem is not None, "an intent without a wanted revision has a problem"
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
        return missing  # the retry topics get the partition count of the source topics
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
