"""The state of a ConsumerGroup after a plan, part by part. Pure."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.planning.fleet.parts import FleetPart
from fleet_operator.planning.fleet.revision import Revision
from fleet_operator.planning.fleet.rollout import RolloutDecision
from fleet_operator.planning.labels import REVISION_ANNOTATION
from fleet_operator.planning.retry.plan import RetryPlan
from fleet_operator.planning.retry.topics import GroupView
from fleet_operator.planning.state.fleet import FleetState
from fleet_operator.planning.state.retries import RetriesState
from fleet_operator.planning.status.facts import failed_topic_id
from fleet_operator.planning.status.retry import find_redriven
from fleet_operator.reconcilers.consumergroup.gather import Gathered


def revisions_of(part: FleetPart) -> frozenset[str]:
    """The revisions that a part runs. Retry workers may lag behind the main ones, or outlive them."""
    running = {pod.revision for pod in part.workers}
    return frozenset(running | {part.fleet.revision} if part.fleet else running)


def fleet_after(gathered: Gathered, wanted: Revision | None, decision: RolloutDecision) -> FleetState:
    """The state of the fleet's revisions after a decision."""
    before, mark = gathered.state.fleet, decision.mark
    # A record may be left unread, or be missing for a while: what is known of its revision stays.
    seen = {(body["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION) for body in gathered.config_maps}
    kept = seen.union(*(revisions_of(part) for part in gathered.parts.values())) | {wanted.hash if wanted else None}
    marks = {name: known for name, known in before.marks.items() if name in kept - set(decision.prune)}
    if mark is not None:
        marks[mark.hash] = mark.mark
    return FleetState(wanted=wanted.hash if wanted is not None else before.wanted, marks=marks)


def retries_after(gathered: Gathered, retry: RetryPlan | None, shown: GroupView) -> RetriesState:
    """The state of the retries after a plan."""
    state, observed = gathered.state.retries, shown.observed
    if retry is not None:
        state = replace(state, sizing=retry.memory.kept)
        state = retry.publication.state(state) if retry.publication is not None else state
    if observed is None:
        return state
    topic_id = failed_topic_id(gathered.group, shown.observation)
    found = find_redriven(gathered.redrive_statuses, observed.observed_at, topic_id, state.redriven)
    return replace(state, redriven=found or state.redriven)
