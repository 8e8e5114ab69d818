"""Upgrades in waves: the record of a group's last one, and where each group stands.

An upgrade is a change of pods that no edit of the group's spec asked for: another worker image of the operator, or
another connection in the KafkaCluster. It stands in the group's state from before the first object changes until the
revision with it runs, so any operator sees in the states alone which groups are on their way, which have arrived, and
which have failed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.model import CANARY_LABEL, PAUSED_ANNOTATION
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import Phase, Upgrade, UpgradeState

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A group's turn to go over: to the operator's image, to the KafkaCluster's connection, or why not yet.

    `waves` is False where upgrades do not come in waves: then images stay, and connections change at once. `alone` is
    that of a fleet that is down: it takes no place, and neither proves nor stops anything.
    """

    waves: bool = False
    image: bool = False
    connection: bool = False
    wait: Problem | None = None
    alone: bool = False

    @property
    def begins(self) -> bool:
        """True if it brings something."""
        return self.image or self.connection

    def declined(self, why: Problem) -> Turn:
        """A turn of which nothing is made, for a reason of the group's own."""
        return Turn(self.waves, wait=why) if self.begins else self


NO_TURN: Final = Turn()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A group as its last reconcile found it.

    - `canary`: it is labelled to go first; `rests`: no worker of it may change now.
    - `whole`: its newest revision runs and serves. Another fleet would prove nothing about an upgrade.
    - `down`: no worker of it serves, so no change can take anything from it; `fails`: because its pods keep dying, or
      its newest revision is refused.
    - `image`: the image that the operator pinned; None for one of the spec, and before the first status.
    - `cluster`, `connection`: its KafkaCluster, and the digest of the connection that it was planned with.
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
        """True if it takes one of the places of a wave."""
        return self.upgrade is not None and self.upgrade.phase is Phase.ROLLING and not self.rests

    def waits_for_image(self, image: str) -> bool:
        """True if the operator's image is another one, and the group may go over: also from one that did not work."""
        under_way = self.upgrade is not None and self.upgrade.image not in (None, image) and self._is_going
        return not self.fails and self._is_behind(image) and (self.whole or under_way)

    def waits_for_connection(self, connection: str | None) -> bool:
        """True if the KafkaCluster's connection is known and another one, and the group may go over.

        A group that is under way may need it in order to arrive.
        """
        behind = not self.rests and self.differs_from(connection)
        return not self.down and behind and (self.whole or self._is_going)

    def turn_alone(self, image: str, connection: str | None) -> Turn:
        """The turn of a fleet that is down: what it lacks may be its remedy, so it waits for nobody.

        Without Kafka, and in their first seconds, fleets are down whatever their image, and all at once would take one
        that no canary has proven: only a fleet that fails takes the image.
        """
        behind = not self.rests and self.down and self.differs_from(connection)
        return Turn(waves=True, image=self.fails and self._is_behind(image), connection=behind, alone=True)

    def _is_behind(self, image: str) -> bool:
        return not self.rests and self.image not in (None, image)

    def differs_from(self, connection: str | None) -> bool:
        return connection is not None and self.connection is not None and self.connection != connection

    @property
    def _is_going(self) -> bool:
        return self.upgrade is not None and self.upgrade.phase is not Phase.COMPLETE


def read_standing(
    body: Mapping[str, Any],
    found: Sequence[Mapping[str, Any]],
    state: UpgradeState,
    cluster: Key,
    canary_namespaces: Collection[str] = (),
) -> Standing:
    """The standing of a ConsumerGroup with these conditions, as its reconcile has just found them.

    The label of canaries counts in `canary_namespaces`, if there are any.
    """
    metadata, spec = body["metadata"], body.get("spec") or {}
    paused = (metadata.get("annotations") or {}).get(PAUSED_ANNOTATION) == "true"
    rests = bool(spec.get("suspend")) or spec.get("replicas") == 0 or paused or "deletionTimestamp" in metadata
    pinned = state.source == "Operator" and not spec.get("image")
    may_lead = not canary_namespaces or metadata["namespace"] in canary_namespaces
    down = _verdict(found, conditions.SERVING) == "False"
    return Standing(
        cluster=cluster,
        canary=may_lead and (metadata.get("labels") or {}).get(CANARY_LABEL) == "true",
        rests=rests,
        whole=_is_whole(found),
        down=down,
        fails=down and _fails(found),
        image=state.image if pinned else None,
        connection=state.connection,
        upgrade=state.last,
    )


def _is_whole(found: Sequence[Mapping[str, Any]]) -> bool:
    """True if the newest revision is Complete, workers serve, and Kafka is not away.

    An operator that has just started has not observed Kafka yet. Canaries must not be passed over for that.
    """
    progressing = conditions.find_condition(found, conditions.PROGRESSING) or {}
    if progressing.get("reason") != conditions.COMPLETE:
        return False
    reachable = _verdict(found, conditions.CLUSTER_REACHABLE) in ("True", "Unknown")
    return reachable and _verdict(found, conditions.SERVING) == "True"


def _fails(found: Sequence[Mapping[str, Any]]) -> bool:
    degraded = conditions.find_condition(found, conditions.DEGRADED) or {}
    dies = degraded.get("status") == "True" and degraded.get("reason") == conditions.WORKERS_FAILING
    return dies or _verdict(found, conditions.STALLED) == "True"


def _verdict(found: Sequence[Mapping[str, Any]], kind: str) -> Any:
    return (conditions.find_condition(found, kind) or {}).get("status")


def begin_upgrade(
    group: ConsumerGroup, before: Upgrade | None, turn: Turn, *, image: str, connection: str | None
) -> Upgrade | None:
    """The upgrade after a turn: a new one if the turn brings something, else the one `before`.

    `image` is the operator's, `connection` the digest of the KafkaCluster's. What was brought before and has not
    arrived yet stays part of it. What a fleet takes over alone begins none.
    """
    going = before is not None and before.phase is not Phase.COMPLETE
    if not turn.begins or (turn.alone and not going):
        return _without_image(before) if group.spec.image is not None else before
    kept = before if before is not None and going else Upgrade(Phase.ROLLING)
    return Upgrade(
        Phase.ROLLING, image if turn.image else kept.image, connection if turn.connection else kept.connection
    )


def _without_image(upgrade: Upgrade | None) -> Upgrade | None:
    """An upgrade whose image the spec has taken out of the operator's hands."""
    if upgrade is None or upgrade.connection is None:
        return None
    return Upgrade(upgrade.phase, None, upgrade.connection)


def advance(upgrade: Upgrade, *, settled: bool, serving: bool, failed: bool) -> Upgrade:
    """An upgrade as its revision's rollout shows it. What is complete stays so: what follows is the spec's doing."""
    if upgrade.phase is Phase.COMPLETE:
        return upgrade
    if failed:
        phase = Phase.FAILED
    elif settled and serving:
        phase = Phase.COMPLETE
    elif settled:
        phase = upgrade.phase  # without workers nothing is proven, and nothing is wrong
    else:
        phase = Phase.ROLLING
    return Upgrade(phase, upgrade.image, upgrade.connection)
