"""A new process assumes to be applied what carries the digest of its intent, and finds out within half an hour where it
is wrong."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.clients.kinds import CONFIG_MAP, SERVICE, STATEFUL_SET, JsonObject, Kind
from fleet_operator.planning.labels import APPLIED_ANNOTATION
from fleet_operator.planning.trimming import trim_stateful_set
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import UNWATCHED_SECONDS, Store, holds
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

LABEL = "consumerfleet.io/group"


def child(kind: Kind, *, owner: str = "u1", **content: Any) -> JsonObject:
    metadata = {
        "namespace": "shop",
        "name": "orders",
        "labels": {LABEL: "orders", "team": "shop"},
        "ownerReferences": [{"kind": "ConsumerGroup", "name": "orders", "uid": owner}],
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content}


FLEET = child(STATEFUL_SET, spec={"replicas": 8, "template": {"spec": {"containers": [{"name": "worker"}]}}})
RECORD = child(CONFIG_MAP, data={"config.json": "{}"})


class Cluster:
    """An API server in memory, and the processes of the operator that serve it one after the other."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.clock = VirtualClock(asyncio.get_running_loop())

    async def process(self, *, annotation: str = APPLIED_ANNOTATION) -> Store:
        """A new process that has listed everything and remembers nothing."""
        store = Store(self.kube, self.clock, WATCHED, applied_annotation=annotation)
        for each in WATCHED:
            for body in (await self.kube.list(each.kind, None, view=each.view)).items:
                store.learn(each.kind, body)
        self.kube.writes.clear()
        return store

    def edit(self, body: JsonObject, change: Callable[[JsonObject], None]) -> JsonObject:
        """Somebody else's change of a stored object."""
        stored = self.kube.objects[body["kind"], "shop", "orders"]
        change(stored)
        self.kube.version += 1
        stored["metadata"]["resourceVersion"] = str(self.kube.version)
        return copy.deepcopy(stored)


def run(life: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        await life(Cluster())

    run_virtual(main())


async def apply(store: Store, body: JsonObject) -> None:
    """An apply over what the cache has, or what is read where there is no cache."""
    kind, key = STATEFUL_SET if body["kind"] == "StatefulSet" else CONFIG_MAP, key_of(body)
    await store.apply(body, over=store.get(kind, key))


def test_new_process_applies_nothing_that_carries_the_digest() -> None:
    async def life(cluster: Cluster) -> None:
        first = await cluster.process()
        await first.apply(FLEET)
        await first.create(RECORD)
        second = await cluster.process()
        reads: list[str] = []
        cluster.kube.before = lambda verb, kind, name: reads.append(verb)
        for body in (FLEET, RECORD):
            assert second.in_place(body)
            await apply(second, body)
        assert (cluster.kube.writes, reads) == ([], [])

    run(life)


def test_digest_of_another_intent_is_not_assumed() -> None:
    """Another version of the operator wrote it, or the object's spec has changed meanwhile."""

    async def life(cluster: Cluster) -> None:
        await (await cluster.process()).apply(FLEET)
        second = await cluster.process()
        smaller = copy.deepcopy(FLEET)
        smaller["spec"]["replicas"] = 7
        assert not second.in_place(smaller)
        await apply(second, smaller)
        assert cluster.kube.writes == [("apply", "StatefulSet", "orders")]

    run(life)


def test_edits_that_the_cache_holds_are_put_right_at_once_by_a_new_process() -> None:
    async def life(cluster: Cluster) -> None:
        edits: list[tuple[JsonObject, Callable[[JsonObject], Any]]] = [
            (FLEET, lambda stored: stored["spec"].update(replicas=1)),
            (FLEET, lambda stored: stored["metadata"]["labels"].pop(LABEL)),
            (FLEET, lambda stored: stored["metadata"].pop("ownerReferences")),
            (RECORD, lambda stored: stored["metadata"]["labels"].update({LABEL: "another"})),
        ]
        await (await cluster.process()).apply(FLEET)
        await (await cluster.process()).apply(RECORD)
        for body, edit in edits:
            cluster.edit(body, edit)
            store = await cluster.process()
            assert not store.in_place(body)
            await apply(store, body)
            assert len(cluster.kube.writes) == 1
            stored = cluster.kube.objects[body["kind"], "shop", "orders"]
            assert holds(stored, body)

    run(life)


def test_object_without_the_annotation_is_applied_once_by_a_process_after_an_upgrade() -> None:
    async def life(cluster: Cluster) -> None:
        older = await cluster.process(annotation="")
        await older.apply(FLEET)
        await older.apply(RECORD)
        assert all(
            APPLIED_ANNOTATION not in body["metadata"].get("annotations", {}) for body in cluster.kube.objects.values()
        )
        newer = await cluster.process()
        for _ in range(2):
            for body in (FLEET, RECORD):
                await apply(newer, body)
        assert [verb for verb, _, _ in cluster.kube.writes] == ["apply", "apply"]
        third = await cluster.process()
        assert third.in_place(FLEET)
        assert third.in_place(RECORD)

    run(life)


def test_edit_that_no_cache_holds_is_put_right_within_half_an_hour() -> None:
    """The data of a ConfigMap was edited while no operator ran: its cache has the metadata alone."""

    async def life(cluster: Cluster) -> None:
        await (await cluster.process()).apply(RECORD)
        cluster.edit(RECORD, lambda stored: stored.update(data={"config.json": "theirs"}))
        store = await cluster.process()
        assert store.in_place(RECORD)
        waited = 0.0
        while not cluster.kube.writes:
            assert waited <= UNWATCHED_SECONDS
            await asyncio.sleep(60)
            waited += 60
            await apply(store, RECORD)
        assert cluster.kube.objects["ConfigMap", "shop", "orders"]["data"] == {"config.json": "{}"}

    run(life)


def test_object_that_is_as_assumed_is_read_once_and_not_written() -> None:
    async def life(cluster: Cluster) -> None:
        await (await cluster.process()).apply(RECORD)
        store = await cluster.process()
        reads: list[str] = []
        cluster.kube.before = lambda verb, kind, name: reads.append(verb)
        for _ in range(4):
            await apply(store, RECORD)
            await asyncio.sleep(UNWATCHED_SECONDS)
        assert (cluster.kube.writes, reads) == ([], ["get"])

    run(life)


def test_what_is_assumed_is_read_at_many_different_times() -> None:
    """A thousand objects that a new process assumes are not read in the same minute."""

    async def life(cluster: Cluster) -> None:
        names = [f"orders-{number}" for number in range(300)]
        bodies = [{**RECORD, "metadata": {**RECORD["metadata"], "name": name}} for name in names]
        first = await cluster.process()
        for body in bodies:
            await first.apply(body)
        store = await cluster.process()
        counts = []
        for _ in range(31):
            counts.append(sum(not store.in_place(body) for body in bodies))
            await asyncio.sleep(60)
        assert (counts[0], counts[-1]) == (0, 300)
        assert max(later - earlier for earlier, later in pairwise(counts)) < 60

    run(life)


def test_object_that_was_deleted_is_never_assumed() -> None:
    async def life(cluster: Cluster) -> None:
        await (await cluster.process()).apply(FLEET)
        cluster.kube.objects.clear()
        store = await cluster.process()
        assert not store.in_place(FLEET)

    run(life)


def test_trusted_object_is_read_within_half_an_hour_and_put_right() -> None:
    async def life(cluster: Cluster) -> None:
        service = child(SERVICE, spec={"clusterIP": "None"})
        store = await cluster.process()
        store.trust(service)
        assert store.in_place(service)
        await asyncio.sleep(UNWATCHED_SECONDS)
        assert not store.in_place(service)
        await store.apply(service)
        assert cluster.kube.writes == [("apply", "Service", "orders")]

    run(life)


def test_trust_does_not_outweigh_what_this_process_applied_itself() -> None:
    async def life(cluster: Cluster) -> None:
        store = await cluster.process()
        await store.apply(child(SERVICE, spec={"clusterIP": "None"}))
        store.trust(child(SERVICE, spec={"clusterIP": "10.0.0.1"}))
        assert not store.in_place(child(SERVICE, spec={"clusterIP": "10.0.0.1"}))

    run(life)


LEAVES = st.one_of(st.booleans(), st.integers(-5, 5), st.text("abc", min_size=1, max_size=3))
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner),
    max_leaves=12,
)


def with_extras(value: Any) -> Any:
    """The value as the API server may store it: with fields of others in every object."""
    if isinstance(value, dict):
        return {"added by others": 1, **{key: with_extras(each) for key, each in value.items()}}
    return [with_extras(each) for each in value] if isinstance(value, list) else value


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all leaves."""
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in leaves(each, (*path, key))]
    if isinstance(value, list):
        return [found for number, each in enumerate(value) for found in leaves(each, (*path, number))]
    return [path]


def with_leaf(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    changed = copy.deepcopy(value)
    inside = changed
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = leaf
    return changed


@given(st.dictionaries(st.text("xyz", min_size=1, max_size=2), JSON), st.data())
def test_object_holds_what_is_meant_until_any_leaf_of_it_changes(meant: dict[str, Any], data: st.DataObject) -> None:
    live = with_extras(meant)
    assert holds(live, meant)
    paths = leaves(meant)
    if paths:
        path = data.draw(st.sampled_from(paths))
        assert not holds(with_leaf(live, path, "another"), meant)
        assert not holds(with_leaf(live, path, None), meant)


def test_lists_of_another_length_or_order_hold_nothing() -> None:
    meant = {"args": ["a", "b"]}
    for args in (["b", "a"], ["a"], ["a", "b", "c"], None, "ab"):
        assert not holds({"args": args}, meant)
    assert not holds({}, meant)


def test_what_is_meant_to_be_empty_holds_without_a_field() -> None:
    """The API server leaves out what is empty."""
    assert holds({"spec": {}}, {"spec": {"labels": {}, "args": [], "note": None}})
    assert not holds({"spec": {}}, {"spec": {"replicas": 0}})
    assert not holds({"spec": {}}, {"spec": {"paused": False}})


def test_object_in_which_others_have_set_fields_is_not_assumed() -> None:
    """A container that was added while no operator ran would run for half an hour."""

    async def life(cluster: Cluster) -> None:
        await apply(await cluster.process(), FLEET)

        def add(stored: JsonObject) -> None:
            stored["spec"]["template"]["spec"]["hostNetwork"] = True
            fields: JsonObject = {"f:spec": {"f:template": {"f:spec": {"f:hostNetwork": {}}}}}
            stored["metadata"]["managedFields"] = [{"manager": "kubectl-edit", "fieldsV1": fields}]

        cluster.edit(FLEET, add)
        store = await cluster.process()
        await apply(store, FLEET)
        assert [verb for verb, _, _ in cluster.kube.writes] == ["apply"]
        await apply(store, FLEET)
        assert len(cluster.kube.writes) == 1

    run(life)


def test_changed_value_is_put_back_and_its_author_named() -> None:
    async def life(cluster: Cluster) -> None:
        store = await cluster.process()
        await apply(store, FLEET)

        def change(stored: JsonObject) -> None:
            stored["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
            stored["metadata"]["generation"] = 2
            fields: JsonObject = {"f:spec": {"f:template": {"f:spec": {"f:containers": {}}}}}
            stored["metadata"]["managedFields"] = [{"manager": "kubectl-set", "fieldsV1": fields}]

        store.learn(STATEFUL_SET, trim_stateful_set(cluster.edit(FLEET, change)))
        named = await store.apply(FLEET, over=store.get(STATEFUL_SET, key_of(FLEET)))
        assert named == "kubectl-set"
        assert holds(cluster.kube.objects["StatefulSet", "shop", "orders"], FLEET)

    run(life)
