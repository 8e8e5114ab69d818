"""The owner of a Kafka group: the oldest object, in any namespace and under any name of the cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import (
    CONSUMER_GROUP,
    KAFKA_CLUSTER,
    OPERATOR_STATE,
    POD,
    STATEFUL_SET,
    WHOLE,
    JsonObject,
    Kind,
)
from fleet_operator.planning.claims import Claim, is_proven
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.reconcilers.claims import NO_RIVALS, find_rivals
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.cache import ObjectCache
from tests.unit.planning import builders

WORKER = {"kind": "StatefulSet", "name": "orders-fleet", "uid": "of-a-former-object"}


def owned(uid: str, **others: str) -> JsonObject:
    """Metadata of an object that belongs to the one with this uid."""
    return {"ownerReferences": [{"uid": uid, **others}]}


def group(namespace: str, second: int, *, group_id: str | None = "orders", **changes: Any) -> JsonObject:
    """A ConsumerGroup of its own namespace, made at this second."""
    metadata = {"name": "orders", "namespace": namespace, "uid": namespace, "resourceVersion": "1", "generation": 1}
    metadata |= {"creationTimestamp": f"2026-01-01T00:00:{second:02}Z"} | changes.pop("metadata", {})
    spec = {"clusterRef": {"name": "main"}, "groupId": group_id, "topics": ["orders"], **changes}
    return {**CONSUMER_GROUP_HEAD, "metadata": metadata, "spec": spec}


CONSUMER_GROUP_HEAD = {"apiVersion": CONSUMER_GROUP.api_version, "kind": CONSUMER_GROUP.kind}


class Place:
    """A context with caches, in which every namespace has a KafkaCluster `main`."""

    def __init__(
        self,
        *groups: JsonObject,
        seen: Mapping[str, str | None],
        stored: dict[str, str] | None = None,
        answered: dict[str, list[str]] | None = None,
        rights: dict[str, bool | None] | None = None,
        empty: bool = False,
        refused: Collection[str] = (),
    ) -> None:
        """`empty`: nobody is in the Kafka group; `refused` are the namespaces whose login the brokers do not let in."""
        self._identities: dict[str, ClusterIdentity] = {}
        self._caches = {each.kind: ObjectCache(replace(each, view=WHOLE)) for each in WATCHED}
        for body in groups:
            self._caches[CONSUMER_GROUP].observe(body)
        for namespace, cluster_id in (stored or {}).items():
            metadata = {"name": "main", "namespace": namespace, "uid": f"c-{namespace}", "resourceVersion": "1"}
            head = {"apiVersion": KAFKA_CLUSTER.api_version, "kind": KAFKA_CLUSTER.kind}
            self._caches[KAFKA_CLUSTER].observe({**head, "metadata": metadata, "spec": {}})
            known = tuple(answered[namespace]) if answered is not None else None
            self._identities[namespace] = ClusterIdentity(cluster_id=cluster_id, answered=known)
        self._seen, self._rights = seen, rights or {}
        self._group = builders.observed_group(**({"state": "Empty", "members": ()} if empty else {}))
        self._refused = refused
        store = SimpleNamespace(
            cache=lambda kind: self._caches[kind], get=lambda kind, key: self._caches[kind].get(*key)
        )
        states = SimpleNamespace(read=lambda body, model: self._identities[body["metadata"]["namespace"]])
        self.context = cast("Context", SimpleNamespace(store=store, observers=self, states=states))

    def latest(self, cluster: tuple[str, str]) -> ClusterObservation | None:
        if cluster[0] in self._refused:
            return ClusterObservation(observed_at=builders.NOW, reachable=False, reason="AuthenticationFailed")
        found = self._seen.get(cluster[0])
        group = replace(self._group, may_read=self._rights.get(cluster[0]))
        return builders.observation(group, cluster_id=found) if cluster[0] in self._seen else None

    def run(self, kind: Kind, namespace: str, name: str, **body: Any) -> None:
        """Show a child of the group of a namespace."""
        labels = {"consumerfleet.io/group": "orders"}
        metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
        self._caches[kind].observe({"metadata": {**metadata, "labels": labels, **body.pop("metadata", {})}, **body})


def older_claim(context: Context, body: JsonObject) -> Claim | None:
    return find_rivals(context, body).older


def heir_of(context: Context, body: JsonObject) -> Claim | None:
    return find_rivals(context, body).heir


RETRY = {"policyRef": {"name": "standard"}}
SAME = {"a": "kafka-1", "b": "kafka-1"}
EACH: dict[str, bool | None] = {"a": True, "b": True}


def test_objects_of_one_name_in_two_namespaces_have_a_group_each_by_default() -> None:
    bodies = group("a", 1, group_id=None), group("b", 2, group_id=None)
    place = Place(*bodies, seen=SAME, stored=SAME)
    assert [find_rivals(place.context, body) for body in bodies] == [NO_RIVALS, NO_RIVALS]


@pytest.mark.parametrize(
    ("named", "kept"),
    [("a.orders", {}), ("a.orders.retry", {"retry": RETRY})],
    ids=["group", "group of retry workers"],
)
def test_id_that_names_the_default_of_another_object_is_taken(named: str, kept: JsonObject) -> None:
    owner, later = group("a", 1, group_id=None, **kept), group("b", 2, group_id=named)
    place = Place(owner, later, seen=SAME, stored=SAME)
    claim = older_claim(place.context, later)
    assert claim is not None
    assert (claim.namespace, claim.group_id) == ("a", named)
    assert older_claim(place.context, owner) is None


def test_older_object_of_another_namespace_owns_the_group() -> None:
    old, young = group("a", 1), group("b", 2)
    place = Place(old, young, seen=dict(SAME))
    found = older_claim(place.context, young)
    assert found is not None
    assert (found.namespace, found.name) == ("a", "orders")
    assert older_claim(place.context, old) is None


def test_one_name_on_two_clusters_is_two_groups() -> None:
    old, young = group("a", 1), group("b", 2)
    place = Place(old, young, seen={"a": "kafka-1", "b": "kafka-2"})
    assert older_claim(place.context, young) is None
    assert heir_of(place.context, old) is None


def test_owner_with_a_silent_cluster_still_owns_the_group() -> None:
    """After a restart nobody has seen that cluster: its object says which one it is."""
    old, young = group("a", 1), group("b", 2)
    place = Place(old, young, seen={"b": "kafka-1"}, stored={"a": "kafka-1"})
    found = older_claim(place.context, young)
    assert found is not None
    assert found.namespace == "a"


def test_foreign_broker_reporting_our_cluster_id_gives_no_ownership() -> None:
    """He made his object long before ours, for every group id that he could think of."""
    squatter, mine = group("a", 1), group("b", 2)
    ids = {"a": "kafka-1", "b": "kafka-1"}
    forged = Place(squatter, mine, seen={}, stored=ids, answered={"a": ["10.6.6.6:9092"], "b": ["kafka:9092"]})
    assert older_claim(forged.context, mine) is None
    assert heir_of(forged.context, mine) is None
    both = {"a": ["kafka:9092"], "b": ["kafka:9092"]}
    backed = Place(squatter, mine, seen=dict(SAME), rights=EACH, stored=ids, answered=both)
    assert older_claim(backed.context, mine) is not None
    assert heir_of(backed.context, mine) is not None


def test_object_with_edited_addresses_claims_nothing_on_the_new_cluster() -> None:
    """An old object could otherwise be pointed at any cluster, and stop the fleet that works there."""
    old, young = group("a", 1), group("b", 2)
    place = Place(old, young, seen={"a": "kafka-1", "b": "kafka-1"}, stored={"a": "kafka-0"})
    assert older_claim(place.context, young) is None


def test_group_that_is_called_like_the_retry_group_of_another_is_taken() -> None:
    old, young = group("a", 1, retry=RETRY), group("b", 2, group_id="orders.retry")
    place = Place(old, young, seen=dict(SAME))
    assert older_claim(place.context, young) is not None
    assert older_claim(Place(group("a", 1), young, seen=dict(SAME)).context, young) is None


def test_heir_is_found_for_an_object_under_deletion() -> None:
    going = group("a", 1, metadata={"deletionTimestamp": "2026-01-01T01:00:00Z"})
    young, youngest = group("b", 2), group("c", 3)
    place = Place(going, young, youngest, seen={**SAME, "c": "kafka-1"}, rights={**EACH, "c": True})
    found = heir_of(place.context, going)
    assert found is not None
    assert found.namespace == "b"
    assert older_claim(place.context, young) is None, "who is going does not hold up the next one"
    assert heir_of(Place(going, seen=dict(SAME)).context, going) is None


def test_object_that_is_made_again_over_its_running_fleet_keeps_the_group() -> None:
    """A squatter has waited for that: older by now, suspended, without workers. Every login may do everything here."""
    again = group("bank", 2)
    for suspend in (True, False):
        squatter = group("evil", 1, suspend=suspend)
        place = Place(squatter, again, seen=dict.fromkeys(("evil", "bank"), "k"), rights={"evil": True, "bank": True})
        place.run(POD, "bank", "orders-0", metadata=owned(**WORKER))
        assert older_claim(place.context, again) is None
        found = older_claim(place.context, squatter)
        assert found is not None
        assert found.namespace == "bank"


def test_statefulset_that_wants_workers_keeps_the_group_and_an_empty_one_goes_before_none() -> None:
    old, young = group("a", 1), group("b", 2)
    for replicas in (2, 0):
        place = Place(old, young, seen=dict(SAME), rights=EACH)
        place.run(STATEFUL_SET, "b", "orders-fleet", spec={"replicas": replicas}, metadata=owned("b"))
        assert older_claim(place.context, young) is None
        assert older_claim(place.context, old) is not None


@pytest.mark.parametrize("metadata", [{}, owned("of-a-former-object", kind="ConsumerGroup", name="orders")])
@pytest.mark.parametrize("replicas", [2, 0])
def test_statefulset_of_somebody_else_is_no_use_of_the_group(metadata: JsonObject, replicas: int) -> None:
    """Applied by hand under the name of an object, it would stop fleets that sleep in other namespaces."""
    named, sleeping = group("a", 1), group("b", 2)
    place = Place(named, sleeping, seen=dict(SAME), rights={"a": None, "b": True})
    place.run(STATEFUL_SET, "b", "orders-fleet", spec={"replicas": 0}, metadata=owned("b"))
    place.run(STATEFUL_SET, "a", "orders-fleet", spec={"replicas": replicas}, metadata=metadata)
    place.run(POD, "a", "orders-0", metadata=owned("a-orders-fleet", kind="StatefulSet", name="orders-fleet"))
    assert older_claim(place.context, sleeping) is None
    assert older_claim(place.context, named) is not None
    assert heir_of(place.context, sleeping) is None
    own = {**owned("a"), "resourceVersion": "2"}
    place.run(STATEFUL_SET, "a", "orders-fleet", spec={"replicas": replicas}, metadata=own)
    assert older_claim(place.context, sleeping) is not None, "its pods are workers"
    assert heir_of(place.context, sleeping) is not None


def test_sleeper_whose_right_is_unknown_inherits_nothing_from_a_fleet_of_another_namespace() -> None:
    going, sleeper = group("a", 1), group("b", 2, suspend=True)
    assert heir_of(Place(going, sleeper, seen=dict(SAME), rights={"a": True}).context, going) is None
    assert heir_of(Place(going, sleeper, seen=dict(SAME), rights=EACH).context, going) is not None


def test_heir_whose_right_was_not_asked_for_yet_is_neither_one_nor_none() -> None:
    """After a start of the operator, the topics of its records would be deleted."""
    going, successor = group("a", 1), group("b", 2)
    stored, brokers = {"a": "kafka-1", "b": "kafka-1"}, {"a": ["broker-1:9092"], "b": ["broker-1:9092"]}
    place = Place(going, successor, seen={"a": "kafka-1"}, stored=stored, answered=brokers, rights={"a": True})
    found = find_rivals(place.context, going)
    assert (found.heir, found.unsure) == (None, True)
    asked = Place(going, successor, seen=stored, stored=stored, answered=brokers, rights={"a": True}, refused=["b"])
    assert find_rivals(asked.context, going) == NO_RIVALS


def test_check_pods_and_pods_of_runs_are_no_workers() -> None:
    old, young = group("a", 1), group("b", 2)
    place = Place(old, young, seen=dict(SAME), rights=EACH)
    for kind in ("ConsumerGroup", "Job"):
        place.run(POD, "b", f"x-{kind}", metadata=owned("u", kind=kind))
    assert older_claim(place.context, young) is not None


def test_claim_of_a_login_that_may_not_read_the_group_neither_owns_nor_inherits_it() -> None:
    old, young = group("a", 1), group("b", 2)
    place = Place(old, young, seen=dict(SAME), rights={"a": False, "b": True})
    assert older_claim(place.context, young) is None
    assert heir_of(place.context, young) is None
    found = older_claim(place.context, old)
    assert found is not None


def test_right_on_the_retry_group_is_asked_for_by_itself() -> None:
    old, young = group("a", 1, retry=RETRY), group("b", 2, group_id="orders.retry")
    place = Place(old, young, seen=dict(SAME), rights={"a": False})
    assert older_claim(place.context, young) is not None, "what is known of `orders` says nothing of `orders.retry`"


@pytest.mark.parametrize("replicas", [None, 0])
@pytest.mark.parametrize("fake", ["statefulset", "pod"])
def test_use_that_a_tenant_pretends_takes_no_group_from_a_proven_right(replicas: int | None, fake: str) -> None:
    """Its login has no right and was refused before its object was made, so that nothing is ever known of the right."""
    mine, evil = group("bank", 1), group("evil", 2)
    brokers = {"bank": ["broker-1:9092"], "evil": ["broker-1:9092"]}
    stored = dict.fromkeys(brokers, "k")
    place = Place(
        mine, evil, seen=stored, stored=stored, answered=brokers, rights={"bank": True}, empty=True, refused=["evil"]
    )
    if replicas is not None:
        place.run(STATEFUL_SET, "bank", "orders-fleet", spec={"replicas": replicas}, metadata=owned("bank"))
    if fake == "statefulset":
        place.run(STATEFUL_SET, "evil", "orders-fleet", spec={"replicas": 1}, metadata=owned("evil"))
    else:
        place.run(POD, "evil", "orders-0", metadata=owned(**WORKER))
    assert older_claim(place.context, mine) is None


def test_fleet_that_runs_keeps_its_group_while_its_right_cannot_be_asked() -> None:
    """Its members are in the group, as the newcomer's own KafkaCluster shows."""
    running, newcomer = group("a", 2), group("b", 1)
    for empty in (False, True):
        place = Place(
            running,
            newcomer,
            seen=dict(SAME),
            stored={"a": "kafka-1", "b": "kafka-1"},
            answered={"a": ["broker-1:9092"], "b": ["broker-1:9092"]},
            rights={"b": True},
            empty=empty,
            refused=["a"],
        )
        place.run(STATEFUL_SET, "a", "orders-fleet", spec={"replicas": 1}, metadata=owned("a"))
        assert (older_claim(place.context, newcomer) is None) is empty
        assert older_claim(place.context, running) is None


def test_right_told_by_a_broker_that_answers_nobody_else_is_no_proof() -> None:
    """Anybody can run one that names itself the coordinator and says yes, and lists the real ones for their answers."""
    for coordinator, proven in ((1, False), (2, True)):
        claim = Claim(
            cluster="k",
            group_id="orders",
            created_at="",
            namespace="evil",
            name="orders",
            answered=frozenset({"broker-1:9092", "broker-2:9092"}),
            may_read=True,
            coordinator=f"broker-{coordinator}:9092",
        )
        other = replace(claim, namespace="bank", answered=frozenset({"broker-2:9092"}))
        assert is_proven(claim, other) is proven


def test_group_that_is_called_like_a_retry_group_is_no_rival_of_a_group_that_never_had_retries() -> None:
    plain = group("a", 1)
    other = group("a", 2, group_id="orders.retry", metadata={"name": "other", "uid": "other"})
    assert heir_of(Place(plain, other, seen=dict(SAME), rights=EACH).context, plain) is None


@pytest.mark.parametrize(
    ("content", "had"),
    [
        ({"retries": {"published_at": builders.NOW}}, True),
        ({"retries": {"published_at": 0.0}}, True),  # the time was lost
        ({"retries": {"sizing": {"count": 0}}}, False),
        ({"retries": "damaged"}, False),
        ({}, False),
    ],
)
def test_group_that_published_retry_policies_owns_its_retry_group_also_without_retries(
    content: JsonObject, had: bool
) -> None:
    """Its retry workers may still drain, and its retry group is deleted with it on request."""
    ended = group("a", 1)
    other = group("a", 2, group_id="orders.retry", metadata={"name": "other", "uid": "other"})
    place = Place(ended, other, seen=dict(SAME), rights=EACH)
    place.run(OPERATOR_STATE, "a", "orders.consumergroup", data=content)
    older, heir = older_claim(place.context, other), heir_of(place.context, ended)
    assert (older is not None, heir is not None) == (had, had)
    assert heir is None or heir.group_id == "orders.retry"


def test_rivals_without_workers_are_not_parsed_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred large objects for one group, each of which looks for its rivals, took the whole event loop."""
    mine = group("bank", 0)
    others = [group("evil", 1, metadata={"name": f"x{number}", "uid": f"x{number}"}) for number in range(300)]
    place = Place(mine, *others, seen=dict.fromkeys(("bank", "evil"), "k"), rights={"bank": True, "evil": True})
    parsed = list[bytes]()
    loads = json_text.loads

    def counted(text: bytes) -> Any:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(json_text, "loads", counted)
    for body in (mine, others[-1]):
        parsed.clear()
        find_rivals(place.context, body)
        assert len(parsed) < 10
    found = older_claim(place.context, others[-1])
    assert found is not None
    assert found.namespace == "bank"
