"""Reads and writes OperatorStates. Each object for which the operator must store a state has one OperatorState.

The operator is the only writer. It puts each write into the cache, so the cache has the latest version. A write
succeeds only if two things have not changed: the version in the API server, and the content that the decision used. The
second condition is needed for a leader process that was suspended. When it resumes, its cache may receive the state
that its successor wrote, while the process still acts on an older decision. Such a process gets a conflict and decides
again.

A state is owned by its object and deleted with it. An object that replaces a namesake within FORMER_SECONDS, as with
`kubectl replace --force`, inherits the namesake's state if both are for the same Kafka group.

Decision: docs/decisions/0052-operator-states.md.
"""

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, group_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, OPERATOR_STATE, JsonObject, Kind, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeNotFoundError
from fleet_operator.planning import labels, times
from fleet_operator.planning.objects import Owner, child_head, has_owner
from fleet_operator.planning.state.document import UnreadableStateError, read_state, write_state
from fleet_operator.reconcilers.routing import RUNS
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.store import Store

FORMER_SECONDS: Final = 60.0
"""Time for which a deleted object's state is kept in memory, for an object of the same name that replaces it."""

S = TypeVar("S")


class StateTakenError(Exception):
    """The OperatorState that the operator wants to write exists and belongs to another owner."""


def state_name(kind: Kind, name: str) -> str:
    return f"{name}.{kind.kind.lower()}"


def state_key(owner: JsonObject) -> Key:
    namespace, name = key_of(owner)
    return namespace, state_name(kind_of(owner), name)


@dataclass(slots=True)
class States:
    store: Store
    clock: Clock
    _former: dict[tuple[Kind, Key], tuple[JsonObject, float]] = field(default_factory=dict)
    """States of deleted objects, with the time of deletion (monotonic seconds)."""

    def read(self, owner: JsonObject, model: type[S]) -> S:
        """The state of an object, empty if nothing is stored. Raises UnreadableStateError."""
        return read_state(model, self._content(owner), state_key(owner)[1])

    def is_own(self, owner: JsonObject) -> bool:
        """True if an object has a state that was written for this object, not for a namesake."""
        found = self.store.get(OPERATOR_STATE, state_key(owner))
        return found is not None and has_owner(found, owner["metadata"]["uid"])

    def made_at(self, owner: JsonObject) -> float | None:
        """Creation time of an object's state, in epoch seconds of the API server's clock; None without a state."""
        found = self.store.get(OPERATOR_STATE, state_key(owner))
        return times.from_text(found["metadata"].get("creationTimestamp")) if found is not None else None

    async def refresh(self, owner: JsonObject) -> None:
        """Read the state of an object live. Raises KubeError."""
        live = await self.store.refresh(OPERATOR_STATE, state_key(owner))
        if live is not None:
            self.store.learn(OPERATOR_STATE, live)

    async def save(self, owner: JsonObject, state: S, *, before: S | None) -> None:
        """Write the state of an object. `before`: the state that the decision used, or None if it used no state. Raises
        StateTakenError, and KubeError: KubeConflictError if another process has written the state since then."""
        address = state_key(owner)
        found = self.store.get(OPERATOR_STATE, address)
        self._require_ours(found, owner)
        if before is not None and not self._stands(owner, before):
            raise KubeConflictError(f"OperatorState {address[1]} has changed since this decision was made", status=409)
        body = _body(owner, write_state(state, self._content(owner)), self._of(owner))
        try:
            if found is None:
                stored = await self.store.kube.create(body)
            else:
                version = {"resourceVersion": found["metadata"]["resourceVersion"]}
                stored = await self.store.kube.replace({**body, "metadata": {**body["metadata"], **version}})
        except (KubeNotFoundError, KubeConflictError):
            await self.refresh(owner)
            self._require_ours(self.store.get(OPERATOR_STATE, address), owner)
            raise
        self.store.learn(OPERATOR_STATE, stored)
        self._former.pop((kind_of(owner), key_of(owner)), None)

    def _stands(self, owner: JsonObject, before: Any) -> bool:
        try:
            return bool(self.read(owner, type(before)) == before)
        except UnreadableStateError:
            return False

    def drop_state(self, kind: Kind, key: Key) -> None:
        """Keep a deleted object's state in memory, for an object of the same name that replaces it."""
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
        # A state that a ConsumerGroup owns may be adopted from a namesake with another Kafka group, so it is checked.
        own = has_owner(found, owner["metadata"]["uid"]) and kind_of(owner) != CONSUMER_GROUP
        if not own and not self._may_inherit(found, owner):
            return {}
        content = found.get("data")
        return content if isinstance(content, dict) else {}

    def _may_inherit(self, state: JsonObject, owner: JsonObject) -> bool:
        """True if this object inherits a namesake's state.

        A recreated KafkaCluster does not inherit the state of the deleted one, because users recreate a KafkaCluster to
        make the operator accept another Kafka cluster. A KafkaCluster does inherit a state without an owner, for
        example from a backup. A ConsumerGroup and its runs inherit a state only if it was stored for the same
        KafkaCluster and Kafka group.
        """
        if kind_of(owner) == KAFKA_CLUSTER:
            return not _references(state)
        former = labels.annotation_of(state, labels.KAFKA_GROUP_ANNOTATION)
        return former is None or former == self._of(owner)

    def _of(self, owner: JsonObject) -> str | None:
        """The KafkaCluster and the Kafka group of a ConsumerGroup or of its run, joined by `/`; None for other kinds,
        or if the run's ConsumerGroup is missing."""
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
    of_group = {labels.GROUP_LABEL: metadata["name"]} if kind == CONSUMER_GROUP else {}
    head = child_head(
        OPERATOR_STATE.api_version,
        OPERATOR_STATE.kind,
        state_key(owner)[1],
        owner=Owner(kind.kind, metadata["namespace"], metadata["name"], metadata["uid"]),
        labels={labels.MANAGED_BY_LABEL: labels.MANAGER, **of_group},
    )
    if of is not None:
        head["metadata"]["annotations"] = {labels.KAFKA_GROUP_ANNOTATION: of}
    return {**head, "data": content}


def _belonged_to_namesake(state: JsonObject, owner: JsonObject) -> bool:
    """True if a state belonged to a former object with the kind and name of `owner`: all owners of the state have this
    kind and name.

    Deletions with `--cascade=orphan` and restored backups leave states without an owner. Such a state belongs to the
    object with the matching name, but a ConsumerGroup gets the state only by adopting the former fleet.
    """
    mine = (owner["kind"], owner["metadata"]["name"])
    references = _references(state)
    if not references:
        return labels.label_of(state, labels.MANAGED_BY_LABEL) == labels.MANAGER and kind_of(owner) != CONSUMER_GROUP
    return all((each["kind"], each["name"]) == mine for each in references)


def _references(state: JsonObject) -> list[dict[str, Any]]:
    return state["metadata"].get("ownerReferences") or []
