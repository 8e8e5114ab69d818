"""Decides when to visit empty Kafka groups, because brokers would otherwise expire their commits. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.parts import MAIN, RETRY, Part, PartPlan
from fleet_operator.planning.offsets import expiry
from fleet_operator.planning.offsets.expiry import ExpiryDecision, ExpiryMemory
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.topics import GroupView
from fleet_operator.planning.state.group import GroupState, OffsetsState
from fleet_operator.planning.status.members import shorten_id
from fleet_operator.planning.times import soonest
from fleet_operator.reconcilers.consumergroup.gather import Gathered

NEVER_VISITED: Final = ExpiryMemory()


def decide_offsets(
    gathered: Gathered, shown: GroupView, parts: Iterable[PartPlan], visits: Mapping[Part, ExpiryMemory], now: float
) -> ExpiryDecision:
    """Decide about the commits of the main group and of the retry workers' group.

    `shown`: the view of the Kafka state that the status uses, which may contain last known values. This suffices,
    because each action begins with a live read of the group. `parts`: the wanted workers. `visits`: history of visits
    to each group. In the decision, `retry_memory` is for the retry workers' group.
    """
    group, before, observation = gathered.group, gathered.state.offsets, gathered.observation
    observed = shown.observed
    main = expiry.ExpiryFacts(
        group_id=group.group_id,
        observed=None if gathered.cluster_changed else observed,
        retention_s=observation.offsets_retention_s if observation is not None else None,
        known=shown.partition_counts is not None,
        kept_at=before.kept_at,
        safe_until=before.safe_until,
        allowed=group.spec.offsets.expiry == "Allow",
        obstacle=_obstacle(gathered),
        memory=visits.get(MAIN, NEVER_VISITED),
    )
    flow = observed.retry if observed is not None else None
    state = None if flow is None or gathered.cluster_changed else flow.state
    workers = sum(part.replicas for part in parts if part.part is RETRY)
    retry = replace(main, group_id=naming.retry_group(group.group_id), memory=visits.get(RETRY, NEVER_VISITED))
    decision, of_retry = expiry.decide_expiry(main, now), expiry.decide_retry_expiry(retry, state, workers, now)
    return replace(
        decision,
        visit_retry=of_retry.visit_retry,
        requeue_after=soonest(decision.requeue_after, of_retry.requeue_after),
        retry_memory=of_retry.memory,
    )


def offsets_after(gathered: Gathered, shown: GroupView, decision: ExpiryDecision, now: float) -> OffsetsState:
    """The `OffsetsState` to store after a decision.

    - `began`: the time at which this state began. `inherited`: True if the group had commits at that time. An object
      that replaces a namesake gets new values of both. Both are None while another object owns the Kafka group.
    - `inherited` is determined only from an observation that was made after `began`, on this Kafka cluster, with all
      topics known. Any other observation may lack commits that existed at `began`.
    """
    observed = shown.observed
    seen = shorten_id(observed.assignor) if observed is not None else ""
    before = gathered.state.offsets
    began, inherited = before.began, before.inherited
    if gathered.older is not None:
        began = inherited = None
    elif began is None or gathered.state == GroupState() or not gathered.own_state:
        began, inherited = now, None
    elif inherited is None and began > now + expiry.AHEAD_S:
        began = now  # the clock was ahead when the time was stored, so the time is in the future
    telling = observed if not gathered.cluster_changed and shown.partition_counts is not None else None
    if inherited is None and began is not None and telling is not None and telling.observed_at >= began:
        inherited = bool(telling.committed)
    return OffsetsState(
        kept_at=decision.kept_at,
        safe_until=decision.safe_until,
        assignor=seen or before.assignor,
        began=began,
        inherited=inherited,
    )


def _obstacle(gathered: Gathered) -> Problem | None:
    """The reason why the operator must not join this group now, or None."""
    if gathered.group.paused:
        message = "annotation consumerfleet.io/paused is set: the operator changes nothing"
        return Problem(conditions.PAUSED_BY_ANNOTATION, message)
    if gathered.older is not None:
        return Problem(conditions.GROUP_ID_TAKEN, "another ConsumerGroup owns the Kafka group and keeps its commits")
    if gathered.hold is not None:
        return Problem(conditions.RESETTING_OFFSETS, "an OffsetReset needs an empty group, and will commit new offsets")
    return None
