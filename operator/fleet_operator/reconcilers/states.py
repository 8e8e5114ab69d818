"""The OperatorStates: one for each object about which the operator has to remember something.

The operator is their only writer, and the cache learns of each write, so what it has is what was written last. A write
is conditional on that version, and on the content that was decided upon: a leader that was suspended may have learnt
what its successor wrote since, and goes on with a decision from before. It meets a conflict, and decides again.

A state is owned by its object and deleted with it. An object that takes the place of a namesake within a short time, as
with `kubectl replace --force`, takes over what was known of that one, if it is of the same Kafka group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, group_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, OPERATOR_STATE, JsonObject, Kind, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeNotFoundError
from fleet_operator.planning import times
from fleet_operator.planning.labels import (
    GROUP_LABEL,
    KAFKA_GROUP_ANNOTATION,
    MANAGED_BY_LABEL,
    MANAGER,
    annotation_of,
    label_of,
)
from fleet_operator.planning.objects import Owner, child_head, has_owner
from fleet_operator.planning.state.document import UnreadableStateError, read_state, write_state
from fleet_operator.reconcilers.routing import RUNS
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.store import Store

FORMER_SECONDS: Final = 60.0
"""Time for which the content of a deleted object's state waits for one that takes its place."""

S = TypeVar("S")


class StateTakenError(Exception):
    """An OperatorState of another owner has the name of one of ours."""


def state_name(kind: Kind, name: str) -> str:
    return f"{name}.{kind.kind.lower()}"


def state_key(owner: JsonObject) -> Key:
    namespace, name = key_of(owner)
    return namespace, state_name(kind_of(owner), name)


@dataclass(slots=True)
class States:
    """The states of one operator. Used on the event loop only."""

    store: Store
    clock: Clock
    _former: dict[tuple[Kind, Key], tuple[JsonObject, float]] = field(default_factory=dict)
    """The states of objects that are gone, and since when (monotonic seconds)."""

    def read(self, owner: JsonObject, model: type[S]) -> S:
        """The state of an object; an empty one if there is none. Raises UnreadableStateError."""
        return read_state(model, self._content(owner), state_key(owner)[1])

    def is_own(self, owner: JsonObject) -> bool:
        """True if an object has a state that was written for it, and not for a namesake."""
        found = self.store.get(OPERATOR_STATE, state_key(owner))
        return found is not None and has_owner(found, owner["metadata"]["uid"])

    def made_at(self, owner: JsonObject) -> float | None:
        """The time at which the state of an object was made, by the API server's clock in epoch seconds; None without
        one."""
        found = self.store.get(OPERATOR_STATE, state_key(owner))
        return times.from_text(found["metadata"].get("creationTimestamp")) if found is not None else None

    async def refresh(self, owner: JsonObject) -> None:
        """Read the state of an object live. Raises KubeError."""
        live = await self.store.refresh(OPERATOR_STATE, state_key(owner))
        if live is not None:
            self.store.learn(OPERATOR_STATE, live)

    async def save(self, owner: JsonObject, state: S, *, before: S | None) -> None:
        """Write the state of an object; `before` is the one that was read when it was decided, None if it rests on no
        other.

        Raises KubeError, with KubeConflictError where another process has written it meanwhile, and StateTakenError.
        """
        address = state_key(owner)
        found = self.store.get(OPERATOR_STATE, address)
        self._require_ours(found, owner)
        if before is not None and not self._stands(owner, before):
            raise KubeConflictError(f"OperatorState {address[1]} was written since this was decided", status=409)
        body = _body(owner, write_state(state, self._content(owner)), self._of(owner))
        try:
            if found is None:
                stored = await self.store.kube.create(body)
            else:
                version = {"resourceVersion": found["metadata"]["resourceVersion"]}
                stored = await self.store.kube.replace({**body, "metadata": {**body["metadata"], **version}})
        except KubeNotFoundError:
            await self.store.refresh(OPERATOR_STATE, address)
            raise
        except KubeConflictError:
            live = await self.store.refresh(OPERATOR_STATE, address)
            self._require_ours(live, owner)
            if live is not None:
                self.store.learn(OPERATOR_STATE, live)
            raise
        self.store.learn(OPERATOR_STATE, stored)
        self._former.pop((kind_of(owner), key_of(owner)), None)

    def _stands(self, owner: JsonObject, before: Any) -> bool:
        try:
            return bool(self.read(owner, type(before)) == before)
        except UnreadableStateError:
            return False

    def forget(self, kind: Kind, key: Key) -> None:
        """Note that an object is gone; its state goes with it."""
        now = self.clock.monotonic()
        for address in [each for each, (_, gone_at) in self._former.items() if now - gone_at >= FORMER_SECONDS]:
            del self._former[address]
        found = self.store.get(OPERATOR_STATE, (key[0], state_name(kind, key[1])))
        if found is not None:
            self._former[kind, key] = found, now

    def _content(self, owner: JsonObject) -> JsonObject:
        found = self.store.get(OPERATOR_STATE, state_key(owner))
        if found is None or not (has_owner(found, owner["metadata"]["uid"]) or _belonged_to_namesake(found, owner)):
            found, gone_at = self._former.get((kind_of(owner), key_of(owner)), (None, 0.0))
            if found is None or self.clock.monotonic() - gone_at >= FORMER_SECONDS:
                return {}
        # A ConsumerGroup may have adopted its own: what it belongs to says nothing about the Kafka group.
        own = has_owner(found, owner["metadata"]["uid"]) and kind_of(owner) != CONSUMER_GROUP
        if not own and not self._may_inherit(found, owner):
            return {}
        content = found.get("data")
        return content if isinstance(content, dict) else {}

    def _may_inherit(self, state: JsonObject, owner: JsonObject) -> bool:
        """True if what was known of a namesake holds for this object.

        A KafkaCluster that was deleted and made again accepts the cluster that it finds: people are told to do that. A
        ConsumerGroup of another Kafka group has nothing of the former one, and neither have the runs of that.
        """
        if kind_of(owner) == KAFKA_CLUSTER:
            return not _references(state)
        former = annotation_of(state, KAFKA_GROUP_ANNOTATION)
        return former is None or former == self._of(owner)

    def _of(self, owner: JsonObject) -> str | None:
        """The KafkaCluster and the Kafka group that an object is about; None where there is none, or not yet."""
        kind = kind_of(owner)
        if kind in RUNS:
            return self._of(group) if (group := self.store.get(CONSUMER_GROUP, group_of(owner))) is not None else None
        return f"{cluster_of(owner)[1]}/{group_id_of(owner)}" if kind == CONSUMER_GROUP else None

    def _require_ours(self, found: JsonObject | None, owner: JsonObject) -> None:
        if found is None or has_owner(found, owner["metadata"]["uid"]) or _belonged_to_namesake(found, owner):
            return
        raise StateTakenError(
            f"OperatorState `{found['metadata']['name']}` exists and does not belong to this {owner['kind']}: remove it"
        )


def _body(owner: JsonObject, content: JsonObject, of: str | None) -> JsonObject:
    metadata, kind = owner["metadata"], kind_of(owner)
    labels = {MANAGED_BY_LABEL: MANAGER} | ({GROUP_LABEL: metadata["name"]} if kind == CONSUMER_GROUP else {})
    head = child_head(
        OPERATOR_STATE.api_version,
        OPERATOR_STATE.kind,
        state_key(owner)[1],
        owner=Owner(kind.kind, metadata["namespace"], metadata["name"], metadata["uid"]),
        labels=labels,
    )
    if of is not None:
        head["metadata"]["annotations"] = {KAFKA_GROUP_ANNOTATION: of}
    return {**head, "data": content}


def _belonged_to_namesake(state: JsonObject, owner: JsonObject) -> bool:
    """True if all its owners are former objects of this kind and name.

    An orphaning deletion leaves a state without an owner, and so do backups. It belongs to the object of its name;
    that of a ConsumerGroup to one that adopts it together with the fleet.
    """
    mine = (owner["kind"], owner["metadata"]["name"])
    references = _references(state)
    if not references:
        return label_of(state, MANAGED_BY_LABEL) == MANAGER and kind_of(owner) != CONSUMER_GROUP
    return all((each["kind"], each["name"]) == mine for each in references)


def _references(state: JsonObject) -> list[dict[str, Any]]:
    return state["metadata"].get("ownerReferences") or []
