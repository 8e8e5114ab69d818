"""The cache under its three racing writers: watch, own writes, sweep."""

from __future__ import annotations

from typing import Any

from fleet_operator.clients.kinds import POD
from fleet_operator.reconcilers.routing import group_index
from fleet_operator.runtime.cache import Change, ObjectCache, WatchedKind, key_of


def sweep(cache: ObjectCache, listed: list[dict[str, Any]], listed_version: int) -> list[Any]:
    """The keys that a list of one page corrects."""
    corrected = [key_of(body) for body in listed if cache.observe(body) is not Change.NOTHING]
    living = {body["metadata"]["uid"] for body in listed}
    return [*cache.drop_missing(living, listed_version), *corrected]


def pod(name: str, version: int, *, uid: str = "", group: str | None = None, **metadata: Any) -> dict[str, Any]:
    labels = {"consumerfleet.io/group": group} if group else {}
    known = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**known, "labels": labels, **metadata}, "status": {}}


def test_older_event_changes_nothing() -> None:
    """The operator wrote version 12; the watch then delivers version 11."""
    cache = ObjectCache(WatchedKind(kind=POD))
    assert cache.observe(pod("a", 12)) is Change.NEW
    assert cache.observe(pod("a", 11)) is Change.NOTHING
    seen = cache.get("ns", "a")
    assert seen
    assert seen["metadata"]["resourceVersion"] == "12"


def test_versions_compare_as_numbers() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 9))
    assert cache.observe(pod("a", 10)) is not Change.NOTHING


def test_status_change_is_distinguished_from_a_spec_change() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 1, generation=1))
    assert cache.observe(pod("a", 2, generation=1)) is Change.STATUS
    assert cache.observe(pod("a", 3, generation=2)) is Change.SPEC
    assert cache.observe(pod("a", 4, generation=2, deletionTimestamp="now")) is Change.SPEC


def test_late_event_does_not_revive_a_deleted_object() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 1))
    assert cache.remove(("ns", "a"), "uid-a", 6) is Change.GONE
    assert cache.observe(pod("a", 5)) is Change.NOTHING
    assert cache.get("ns", "a") is None


def test_object_that_lost_its_label_is_seen_again_when_the_label_is_back() -> None:
    """A watch with a selector says "deleted" when the label goes, at the version of that change."""
    cache = ObjectCache(WatchedKind(kind=POD, index=group_index))
    cache.observe(pod("a", 10, group="orders"))
    assert cache.remove(("ns", "a"), "uid-a", 11) is Change.GONE
    assert cache.observe(pod("a", 10, group="orders")) is Change.NOTHING
    assert cache.observe(pod("a", 12, group="orders")) is Change.NEW
    assert cache.having(("ns", "orders"))


def test_own_write_that_restored_a_label_survives_the_late_event_of_its_loss() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 10))
    cache.observe(pod("a", 12))
    assert cache.remove(("ns", "a"), "uid-a", 11) is Change.NOTHING
    assert cache.get("ns", "a")


def test_object_read_live_at_the_version_of_its_loss_is_taken_in() -> None:
    """Nobody has changed it since it lost its label, so it still has that version; a deleted object is never read."""
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 10))
    cache.remove(("ns", "a"), "uid-a", 11)
    assert cache.observe(pod("a", 11)) is Change.NEW


def test_sweep_restores_an_object_dropped_by_an_earlier_sweep() -> None:
    """The label was gone while one list was taken, and is back in the next one."""
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 5))
    sweep(cache, [], listed_version=10)
    assert sweep(cache, [pod("a", 12)], listed_version=13) == [("ns", "a")]
    assert cache.get("ns", "a")


def test_namesake_of_a_deleted_object_is_another_object() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 1))
    cache.observe(pod("a", 3, uid="second"))
    assert cache.remove(("ns", "a"), "uid-a", 2) is Change.NOTHING
    assert cache.get("ns", "a")


def test_children_are_found_by_group_and_leave_with_it() -> None:
    cache = ObjectCache(WatchedKind(kind=POD, index=group_index))
    cache.observe(pod("b", 1, group="orders"))
    cache.observe(pod("a", 1, group="orders"))
    cache.observe(pod("c", 1, group="other"))
    assert [body["metadata"]["name"] for body in cache.having(("ns", "orders"))] == ["a", "b"]
    cache.observe(pod("a", 2, group="other"))
    cache.remove(("ns", "b"), "uid-b", 2)
    assert cache.having(("ns", "orders")) == []


def test_sweep_drops_objects_deleted_unseen() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("gone", 5))
    cache.observe(pod("kept", 6))
    assert sweep(cache, [pod("kept", 6)], listed_version=10) == [("ns", "gone")]
    assert list(cache.keys()) == [("ns", "kept")]


def test_sweep_keeps_objects_created_after_its_list() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("new", 11))
    assert sweep(cache, [], listed_version=10) == []
    assert len(cache) == 1


def test_sweep_does_not_revive_objects_deleted_during_its_list() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 5))
    cache.remove(("ns", "a"), "uid-a", 11)
    assert sweep(cache, [pod("a", 5)], listed_version=10) == []
    assert len(cache) == 0


def test_sweep_adds_objects_missed_by_the_watch() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    assert sweep(cache, [pod("a", 5)], listed_version=10) == [("ns", "a")]


def test_managed_fields_are_not_kept() -> None:
    cache = ObjectCache(WatchedKind(kind=POD))
    cache.observe(pod("a", 1, managedFields=[{"manager": "x"}]))
    seen = cache.get("ns", "a")
    assert seen
    assert "managedFields" not in seen["metadata"]
