"""Decides about upgrades and chooses the wanted revision. Upgrades are changes from outside the group's spec, such as a
new worker image or connection. Pure."""

from dataclasses import dataclass, replace

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.image import WorkerImage, choose_image
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.revision import Revision, connection_digest, keep_running, plan_revision
from fleet_operator.planning.fleet.waves import Slot, begin_upgrade
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import UpgradeState
from fleet_operator.reconcilers.consumergroup.gather import Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePlan:
    """The decision about upgrades. `slot`: the changes that the fleet applies now. `revision`: the wanted revision, or
    None if no revision can be made from the spec."""

    slot: Slot
    image: WorkerImage
    revision: Revision | None
    state: UpgradeState


def decide_upgrade(gathered: Gathered, problem: Problem | None, *, default: str) -> UpgradePlan:
    """Decide the upgrade. `problem`: why no revision is possible, or None; `default`: the operator's worker image."""
    slot = _usable_slot(gathered, problem)
    chosen = choose_image(gathered.group, gathered.state.upgrade, gathered.parts[MAIN].body, default=default)
    image = replace(chosen, name=default) if slot.image else chosen
    revision = _plan_wanted(gathered, image.name, slot) if problem is None else None
    state = _upgrade_after(gathered, slot, image, revision, default=default)
    return UpgradePlan(slot=slot, image=image, revision=revision, state=state)


def _usable_slot(gathered: Gathered, problem: Problem | None) -> Slot:
    """The group's upgrade slot.

    The group declines its slot, and leaves it to other groups, while an upgrade could make no progress. This is so if
    no revision can be made from the spec, or if the Kafka cluster does not answer. A slot that was given because the
    group had no ready workers is also declined once workers are ready again.
    """
    if problem is not None:
        return gathered.slot.declined(Problem(conditions.WAITING_FOR_FLEET, f"{problem.reason}: {problem.message}"))
    if gathered.on_its_cluster and not (gathered.slot.alone and any(pod.ready for pod in gathered.parts[MAIN].workers)):
        return gathered.slot
    message = "Kafka does not answer: the group will be upgraded once Kafka answers again, see ClusterReachable"
    if gathered.on_its_cluster:
        message = "workers are ready again: the group is upgraded when it gets a slot"
    return gathered.slot.declined(Problem(conditions.WAITING_FOR_FLEET, message))


def _plan_wanted(gathered: Gathered, image: str, slot: Slot) -> Revision | None:
    """The revision for the spec with this worker image; None without a KafkaCluster.

    The running revision stays wanted in two cases: the new revision differs only in how it is rendered, or it differs
    in a changed connection for which the group has no slot yet.
    """
    group, cluster = gathered.group, gathered.cluster
    if isinstance(cluster, Problem):
        return None
    planned = plan_revision(group, cluster, handler_files=gathered.handler_files, image=image)
    taken_over = slot.connection or gathered.state.upgrade.connection == planned.inputs.connection
    waits = slot.waves and not taken_over
    return keep_running(
        planned, gathered.parts[MAIN].body, gathered.config_maps, gathered.state.fleet.verdicts, connection_waits=waits
    )


def _upgrade_after(
    gathered: Gathered, slot: Slot, chosen: WorkerImage, revision: Revision | None, *, default: str
) -> UpgradeState:
    """The `UpgradeState` to store after a decision. `chosen` and `revision`: the image and the revision that workers
    should run."""
    before = gathered.state.upgrade
    connection = None if isinstance(gathered.cluster, Problem) else connection_digest(gathered.cluster)
    return UpgradeState(
        image=chosen.name,
        source=chosen.source,
        connection=revision.inputs.connection if revision is not None else before.connection,
        last=begin_upgrade(gathered.group, before.last, slot, image=default, connection=connection),
    )
