"""Upgrades in waves: a group's last upgrade, and its rollout status.

An upgrade is a change of pods that no edit of the group's spec requested: another worker image of the operator, or
another connection in the KafkaCluster. An upgrade is written to the group's state before the first object changes. So
the states alone show which groups are upgrading, complete or failed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.model import CANARY_LABEL, PAUSED_ANNOTATION
from fleet_operator.planning.labels import annotation_of, label_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import Phase, Upgrade, UpgradeState

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A group's permission to upgrade now, or the reason why the group must wait.

    - `image`: the group may take over the operator's image. `connection`: the group may take over the KafkaCluster's
      connection.
    - `wait`: the reason why the group must wait; None if it does not wait.
    - `waves`: False if upgrades in waves are disabled. Images then stay as they are, and connections change
      immediately.
    - `alone`: the slot of a fleet that is down. Such a slot does not count against the bound. Its success does not
      prove the change for other groups, and its failure does not stop other groups.
    """

    waves: bool = False
    image: bool = False
    connection: bool = False
    wait: Problem | None = None
    alone: bool = False

    @property
    def begins(self) -> bool:
        return self.image or self.connection

    def declined(self, why: Problem) -> "Slot":
        """The slot after the group has declined the slot's changes for the reason `why`. A slot without changes stays
        as it is."""
        return Slot(self.waves, wait=why) if self.begins else self


NO_SLOT: Final = Slot()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatus:
    """A group's rollout status at its last reconcile, for decisions about upgrades.

    - `canary`: the group has the canary label and upgrades first. `rests`: the group is suspended, paused, being
      deleted or without workers, so none of its workers may change now.
    - `whole`: the group's newest revision runs and serves. Only a fleet in this state can prove that an upgrade works.
    - `down`: no worker serves, so a change interrupts nothing. `fails`: the group is down because its pods keep dying
      or its newest revision is refused.
    - `image`: the image that the operator chose; None if the spec sets the image, or if no image has been chosen yet.
    - `cluster`: the group's KafkaCluster. `connection`: the digest of the connection with which the group was planned.
    """

    cluster: Key
    canary: bool = False
    rests: bool = False
    whole: bool = False
    down: bool = False
    fails: bool = False
    image: str | None = None
    connection: str | None = None
    upgrade: Upgrade | None = None

    @property
    def rolls(self) -> bool:
        """True if the group holds a slot of a wave."""
        return self.upgrade is not None and self.upgrade.phase is Phase.ROLLING and not self.rests

    def waits_for_image(self, image: str) -> bool:
        """True if the group has another image than `image`, the operator's image, and can be upgraded to it. This
        includes a group in an incomplete upgrade to a third image, which may be the cause why the upgrade is stuck."""
        under_way = self.upgrade is not None and self.upgrade.image not in (None, image) and self._is_going
        return not self.fails and self._is_behind(image) and (self.whole or under_way)

    def waits_for_connection(self, connection: str | None) -> bool:
        """True if the group has another connection than the KafkaCluster's `connection`, and can take it over. Also
        True during an incomplete upgrade, because the group may need the new connection to complete the upgrade."""
        behind = not self.rests and self.differs_from(connection)
        return not self.down and behind and (self.whole or self._is_going)

    def slot_alone(self, image: str, connection: str | None) -> Slot:
        """The slot of a fleet that is down. Such a fleet waits for no other group, because the change may repair it.

        Only a failing fleet also gets the new image. Every fleet is down in its first seconds and while Kafka is
        unreachable, even with a good image, and must not take an image that no canary has proven."""
        behind = not self.rests and self.down and self.differs_from(connection)
        return Slot(waves=True, image=self.fails and self._is_behind(image), connection=behind, alone=True)

    def _is_behind(self, image: str) -> bool:
        return not self.rests and self.image not in (None, image)

    def differs_from(self, connection: str | None) -> bool:
        return connection is not None and self.connection is not None and self.connection != connection

    @property
    def _is_going(self) -> bool:
        return self.upgrade is not None and self.upgrade.phase is not Phase.COMPLETE


def read_rollout_status(
    body: Mapping[str, Any],
    found: Sequence[Mapping[str, Any]],
    state: UpgradeState,
    cluster: Key,
    canary_namespaces: Collection[str] = (),
) -> RolloutStatus:
    """Read a group's rollout status. `found`: the group's newest conditions. `canary_namespaces`: if not empty, the
    canary label counts only in these namespaces."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    paused = annotation_of(body, PAUSED_ANNOTATION) == "true"
    pinned = state.source == "Operator" and not spec.get("image")
    may_lead = not canary_namespaces or metadata["namespace"] in canary_namespaces
    status = {each["type"]: each["status"] for each in found}
    reason = {each["type"]: each["reason"] for each in found}
    # Unknown counts too: an operator that has just started has not observed Kafka yet, and must not exclude canaries.
    reachable = status.get(conditions.CLUSTER_REACHABLE) in ("True", "Unknown")
    complete = reason.get(conditions.PROGRESSING) == conditions.COMPLETE
    down = status.get(conditions.SERVING) == "False"
    dies = status.get(conditions.DEGRADED) == "True" and reason[conditions.DEGRADED] == conditions.WORKERS_FAILING
    return RolloutStatus(
        cluster=cluster,
        canary=may_lead and label_of(body, CANARY_LABEL) == "true",
        rests=bool(spec.get("suspend")) or spec.get("replicas") == 0 or paused or "deletionTimestamp" in metadata,
        whole=complete and reachable and status.get(conditions.SERVING) == "True",
        down=down,
        fails=down and (dies or status.get(conditions.STALLED) == "True"),
        image=state.image if pinned else None,
        connection=state.connection,
        upgrade=state.last,
    )


def begin_upgrade(
    group: ConsumerGroup, before: Upgrade | None, slot: Slot, *, image: str, connection: str | None
) -> Upgrade | None:
    """Return the group's last upgrade: a new upgrade if the slot has a change, else `before`. `image`: the operator's
    image; `connection`: the digest of the KafkaCluster's connection.

    The changes of an incomplete upgrade stay part of the new upgrade. A slot with `alone` starts no upgrade, but may
    add its changes to an incomplete upgrade."""
    going = before is not None and before.phase is not Phase.COMPLETE
    if not slot.begins or (slot.alone and not going):
        if before is None or group.spec.image is None:
            return before
        return replace(before, image=None) if before.connection is not None else None
    kept = before if before is not None and going else Upgrade(Phase.ROLLING)
    return Upgrade(
        Phase.ROLLING, image if slot.image else kept.image, connection if slot.connection else kept.connection
    )


def advance(upgrade: Upgrade, *, settled: bool, serving: bool, failed: bool) -> Upgrade:
    """The upgrade after a step of its rollout. A complete upgrade stays complete, because later rollouts are caused by
    changes of the spec."""
    if upgrade.phase is Phase.COMPLETE:
        return upgrade
    if failed:
        return replace(upgrade, phase=Phase.FAILED)
    if settled and not serving:
        return upgrade  # without serving workers, the upgrade is neither proven nor disproven
    return replace(upgrade, phase=Phase.COMPLETE if settled else Phase.ROLLING)
