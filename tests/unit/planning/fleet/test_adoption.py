"""Objects of a former ConsumerGroup that a new one of its name may take over."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.api.v1alpha1.model import API_VERSION
from fleet_operator.planning.objects import adopted, asks_to_adopt, is_adoptable

OWNER: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "ConsumerGroup",
    "metadata": {"name": "orders", "namespace": "shop", "uid": "new"},
}
LABELS = {"consumerfleet.io/group": "orders", "app.kubernetes.io/managed-by": "consumer-fleet"}
FORMER = {"apiVersion": API_VERSION, "kind": "ConsumerGroup", "name": "orders", "uid": "old"}


def child(*owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    base = {"name": "orders", "namespace": "shop", "uid": "s", "resourceVersion": "7", "labels": LABELS}
    references = {"ownerReferences": list(owners)} if owners else {}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": base | references | metadata}


def test_objects_without_an_owner_and_of_the_former_one_are_adoptable() -> None:
    assert is_adoptable(child(), OWNER)
    assert is_adoptable(child(FORMER), OWNER)
    assert is_adoptable(child({**FORMER, "apiVersion": "consumerfleet.io/v1"}), OWNER)


@pytest.mark.parametrize(
    "other",
    [
        child({**FORMER, "name": "payments"}),
        child({**FORMER, "kind": "Redrive"}),
        child({**FORMER, "apiVersion": "other.io/v1"}),
        child(FORMER, {"apiVersion": "apps/v1", "kind": "Deployment", "name": "orders", "uid": "d"}),
        child({**FORMER, "uid": "new"}),
        child(labels={}),
        child(labels=LABELS | {"consumerfleet.io/group": "payments"}),
        child(labels={"consumerfleet.io/group": "orders"}),
        child(deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
)
def test_objects_of_others_and_those_on_their_way_out_are_not(other: dict[str, Any]) -> None:
    assert not is_adoptable(other, OWNER)


def test_owners_of_other_kinds_and_those_on_their_way_out_adopt_nothing() -> None:
    leaving = {**OWNER, "metadata": {**OWNER["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert not is_adoptable(child(), leaving)
    assert not is_adoptable(child(), {**OWNER, "kind": "Redrive"})


def test_adoption_changes_the_owner_of_the_very_version_that_was_read() -> None:
    change = adopted(child(FORMER), OWNER)
    metadata = change["metadata"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("s", "7")
    assert [(each["name"], each["uid"], each["controller"]) for each in metadata["ownerReferences"]] == [
        ("orders", "new", True)
    ]
    assert set(metadata) == {"name", "namespace", "uid", "resourceVersion", "ownerReferences"}
    assert set(change) == {"apiVersion", "kind", "metadata"}


@pytest.mark.parametrize(("value", "asks"), [("true", True), ("false", False), ("", False), ("True", False)])
def test_adoption_is_asked_for_by_one_word(value: str, asks: bool) -> None:
    annotated = {**OWNER, "metadata": {**OWNER["metadata"], "annotations": {"consumerfleet.io/adopt": value}}}
    assert asks_to_adopt(annotated) is asks
    annotated["metadata"]["annotations"]["consumerfleet.io/paused"] = "true"
    assert not asks_to_adopt(annotated)
    assert not asks_to_adopt(OWNER)
