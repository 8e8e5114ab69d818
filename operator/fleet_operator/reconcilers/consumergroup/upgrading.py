"""The part of a plan that follows changes outside of the spec: the turn, the revision, the upgrade. Pure."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.api.v1alpha1 import ConsumerGroup, conditions
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.fleet.image import WorkerImage, choose_image
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.revision import Revision, connection_digest, keep_running, plan_revision
from fleet_operator.planning.fleet.waves import Turn, Upgrade, begin_upgrade
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.consumergroup.gather import Gathered


def usable_turn(gathered: Gathered, problem: Problem | None) -> Turn:
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


def image_after(turn: Turn, group: ConsumerGroup, stateful_set: JsonObject | None, *, default: str) -> WorkerImage:
    """The workers' image after a turn."""
    chosen = choose_image(group, stateful_set, default=default)
    return replace(chosen, name=default) if turn.image else chosen


def plan_wanted(gathered: Gathered, image: str, turn: Turn) -> Revision | None:
    """The revision for the spec with this worker image; None without a KafkaCluster.

    It is the one that runs as long as nothing else than its form would change, or than a connection whose turn has not
    come.
    """
    group, cluster = gathered.group, gathered.cluster
    if isinstance(cluster, Problem):
        return None
    planned = plan_revision(group, cluster, handler_files=gathered.handler_files, image=image)
    taken_over = turn.connection or group.status.get("connection") == planned.inputs.connection
    waits = turn.waves and not taken_over
    return keep_running(planned, gathered.parts[MAIN].body, gathered.config_maps, connection_waits=waits)


def upgrade_of(gathered: Gathered, turn: Turn, image: str) -> Upgrade | None:
    """The upgrade that stands in the status after this turn; `image` is the operator's."""
    connection = None if isinstance(gathered.cluster, Problem) else connection_digest(gathered.cluster)
    return begin_upgrade(gathered.group, turn, image=image, connection=connection)
