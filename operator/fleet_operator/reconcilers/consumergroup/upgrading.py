"""The concern of upgrades: what the fleet takes over of changes outside of its spec, and the wanted revision. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.image import WorkerImage, choose_image
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.revision import Revision, connection_digest, keep_running, plan_revision
from fleet_operator.planning.fleet.waves import Turn, begin_upgrade
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import UpgradeState
from fleet_operator.reconcilers.consumergroup.gather import Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePlan:
    """The turn (changes that the fleet takes over now), the workers' image, and the wanted revision, if the spec can
    become one."""

    turn: Turn
    image: WorkerImage
    revision: Revision | None
    state: UpgradeState


def decide_upgrade(gathered: Gathered, problem: Problem | None, *, default: str) -> UpgradePlan:
    """The decision; `problem` keeps the group from having a revision, `default` is the operator's worker image."""
    turn = _usable_turn(gathered, problem)
    chosen = choose_image(gathered.group, gathered.state.upgrade, gathered.parts[MAIN].body, default=default)
    image = replace(chosen, name=default) if turn.image else chosen
    revision = _plan_wanted(gathered, image.name, turn) if problem is None else None
    state = _upgrade_after(gathered, turn, image, revision, default=default)
    return UpgradePlan(turn=turn, image=image, revision=revision, state=state)


def _usable_turn(gathered: Gathered, problem: Problem | None) -> Turn:
    """The group's turn; nothing begins while nothing could come of it.

    A fleet that cannot be planned, or whose Kafka does not answer, would only hold a place that others could use.
    """
    if problem is not None:
        return gathered.turn.declined(Problem(conditions.WAITING_FOR_FLEET, f"{problem.reason}: {problem.message}"))
    if gathered.on_its_cluster and not (gathered.turn.alone and any(pod.ready for pod in gathered.parts[MAIN].workers)):
        return gathered.turn
    message = "Kafka does not answer: the group goes over when it does, see ClusterReachable"
    if gathered.on_its_cluster:
        message = "workers are ready again: the group goes over in its turn"
    return gathered.turn.declined(Problem(conditions.WAITING_FOR_FLEET, message))


def _plan_wanted(gathered: Gathered, image: str, turn: Turn) -> Revision | None:
    """The revision for the spec with this worker image; None without a KafkaCluster.

    It is the one that runs as long as nothing else than its form would change, or than a connection whose turn has not
    come.
    """
    group, cluster = gathered.group, gathered.cluster
    if isinstance(cluster, Problem):
        return None
    planned = plan_revision(group, cluster, handler_files=gathered.handler_files, image=image)
    taken_over = turn.connection or gathered.state.upgrade.connection == planned.inputs.connection
    waits = turn.waves and not taken_over
    return keep_running(
        planned, gathered.parts[MAIN].body, gathered.config_maps, gathered.state.fleet.marks, connection_waits=waits
    )


def _upgrade_after(
    gathered: Gathered, turn: Turn, chosen: WorkerImage, revision: Revision | None, *, default: str
) -> UpgradeState:
    """The state of upgrades after this turn; `chosen` and `revision` are what the workers are wanted to run."""
    before = gathered.state.upgrade
    connection = None if isinstance(gathered.cluster, Problem) else connection_digest(gathered.cluster)
    return UpgradeState(
        image=chosen.name,
        source=chosen.source,
        connection=revision.inputs.connection if revision is not None else before.connection,
        last=begin_upgrade(gathered.group, before.last, turn, image=default, connection=connection),
    )
