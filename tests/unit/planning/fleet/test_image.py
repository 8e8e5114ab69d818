"""The pinned worker image: which one, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning.fleet.image import WorkerImage, choose_image
from fleet_operator.planning.status.conditions import project_conditions
from tests.unit.planning.builders import consumer_group, facts

OLD, NEW = "registry.example:5000/fleet/consumer:1.0@sha256:0a1b", "registry.example:5000/fleet/consumer:2.0"


def group_of(status: dict[str, Any] | None = None, **spec: Any) -> ConsumerGroup:
    return consumer_group(**spec).model_copy(update={"status": status or {}})


def running(image: Any) -> dict[str, Any]:
    containers = [{"name": "side", "image": "side"}, {"name": "worker", "image": image}]
    return {"spec": {"template": {"spec": {"containers": containers}}}}


def chosen(group: ConsumerGroup, stateful_set: dict[str, Any] | None = None, *, default: str = NEW) -> tuple[str, str]:
    image = choose_image(group, stateful_set, default=default)
    return image.name, image.source


def test_new_group_is_pinned_to_the_default() -> None:
    assert chosen(group_of()) == (NEW, "Operator")


def test_pinned_group_stays_whatever_the_default_is() -> None:
    pinned = group_of({"image": OLD, "imageSource": "Operator"})
    assert chosen(pinned) == (OLD, "Operator")
    assert chosen(pinned, running("another:1")) == (OLD, "Operator")


def test_image_of_the_spec_wins_and_its_removal_pins_to_the_default_of_the_moment() -> None:
    assert chosen(group_of({"image": OLD, "imageSource": "Operator"}, image="shop:1")) == ("shop:1", "Spec")
    removed = group_of({"image": "shop:1", "imageSource": "Spec"})
    assert chosen(removed, running("shop:1")) == (NEW, "Operator")


@pytest.mark.parametrize("lost", [{}, {"image": ""}, {"image": None}, {"imageSource": "Operator"}, {"image": 7}])
def test_group_without_its_status_stays_at_the_image_that_runs(lost: dict[str, Any]) -> None:
    assert chosen(group_of(lost), running(OLD)) == (OLD, "Operator")
    assert chosen(group_of(lost)) == (NEW, "Operator")


@pytest.mark.parametrize("rubbish", ["two words", "-x", "a\nb", "$(reboot)", "a" * 1025, "ä:1", ["a"], {}])
def test_text_that_is_no_image_is_not_run(rubbish: Any) -> None:
    assert chosen(group_of({"image": rubbish, "imageSource": "Operator"}), running(OLD)) == (OLD, "Operator")
    removed_from_spec = group_of({"image": rubbish, "imageSource": "Spec"})
    assert chosen(removed_from_spec, running(OLD)) == (NEW, "Operator"), "as when any other image is removed"
    assert chosen(group_of(), running(rubbish)) == (NEW, "Operator")


def test_unknown_source_is_a_pin() -> None:
    for source in (None, "", "Somebody", 5):
        assert chosen(group_of({"image": OLD, "imageSource": source})) == (OLD, "Operator")


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"template": {"spec": {"containers": None}}}}])
def test_stateful_set_without_a_worker_says_nothing(broken: dict[str, Any]) -> None:
    assert chosen(group_of(), broken) == (NEW, "Operator")


def test_choice_is_stable_once_it_is_recorded() -> None:
    """A reconcile that follows on its own status chooses the same, under any operator."""
    for status in ({}, {"image": OLD, "imageSource": "Operator"}, {"image": "shop:1", "imageSource": "Spec"}):
        first = choose_image(group_of(status), None, default=OLD)
        again = choose_image(group_of(first.fields), None, default=NEW)
        assert again.name == first.name
        assert again.is_recorded(first.fields)
        assert not again.is_recorded({"image": first.name})


@pytest.mark.parametrize(
    ("image", "status", "reason"),
    [
        (WorkerImage(OLD, "Operator", default=OLD), "False", "UpToDate"),
        (WorkerImage(OLD, "Operator", default=NEW), "True", "DefaultImageDiffers"),
        (WorkerImage("shop:1", "Spec", default=NEW), "False", "ImageFromSpec"),
    ],
)
def test_upgrade_is_announced_and_how_to_take_it(image: WorkerImage, status: str, reason: str) -> None:
    conditions = project_conditions(facts(image=image), (), ())
    found = next(each for each in conditions if each.type == "UpgradeAvailable")
    assert (found.type, found.status, found.reason) == ("UpgradeAvailable", status, reason)
    if status == "True":
        assert OLD in found.message
        assert f"image is {NEW} now: set spec.image" in found.message
