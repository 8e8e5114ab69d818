"""The pinned worker image: which one, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.fleet.image import WorkerImage, choose_image
from fleet_operator.planning.state.document import UnreadableStateError, read_state
from fleet_operator.planning.state.group import GroupState, UpgradeState
from fleet_operator.planning.status.conditions import project_conditions
from tests.unit.planning.builders import consumer_group, facts

OLD, NEW = "registry.example:5000/fleet/consumer:1.0@sha256:0a1b", "registry.example:5000/fleet/consumer:2.0"


def running(image: Any) -> dict[str, Any]:
    containers = [{"name": "side", "image": "side"}, {"name": "worker", "image": image}]
    return {"spec": {"template": {"spec": {"containers": containers}}}}


PINNED = UpgradeState(image=OLD, source="Operator")


def chosen(
    state: UpgradeState, stateful_set: dict[str, Any] | None = None, *, default: str = NEW, **spec: Any
) -> tuple[str, str]:
    image = choose_image(consumer_group(**spec), state, stateful_set, default=default)
    return image.name, image.source


def test_new_group_is_pinned_to_the_default() -> None:
    assert chosen(UpgradeState()) == (NEW, "Operator")


def test_pinned_group_stays_whatever_the_default_is() -> None:
    assert chosen(PINNED) == (OLD, "Operator")
    assert chosen(PINNED, running("another:1")) == (OLD, "Operator")


def test_image_of_the_spec_wins_and_its_removal_pins_to_the_default_of_the_moment() -> None:
    assert chosen(PINNED, image="shop:1") == ("shop:1", "Spec")
    removed = UpgradeState(image="shop:1", source="Spec")
    assert chosen(removed, running("shop:1")) == (NEW, "Operator")


@pytest.mark.parametrize("lost", [UpgradeState(), UpgradeState(source="Operator")])
def test_group_without_its_state_stays_at_the_image_that_runs(lost: UpgradeState) -> None:
    assert chosen(lost, running(OLD)) == (OLD, "Operator")
    assert chosen(lost) == (NEW, "Operator")


@pytest.mark.parametrize("rubbish", ["two words", "-x", "a\nb", "$(reboot)", "a" * 1025, "ä:1", ["a"], {}])
def test_text_that_is_no_image_is_not_run(rubbish: Any) -> None:
    """A state with it can be read, because the operator stores any image that a spec or its settings name."""
    assert chosen(UpgradeState(image=rubbish, source="Operator"), running(OLD)) == (OLD, "Operator")
    assert chosen(UpgradeState(), running(rubbish)) == (NEW, "Operator")


@pytest.mark.parametrize("foreign", ["a" * 1025, ["a"], {}])
def test_state_with_an_image_that_no_spec_can_name_is_not_read(foreign: Any) -> None:
    with pytest.raises(UnreadableStateError, match=r"upgrade\.image"):
        read_state(GroupState, {"upgrade": {"image": foreign}}, "orders")


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"template": {"spec": {"containers": None}}}}])
def test_stateful_set_without_a_worker_says_nothing(broken: dict[str, Any]) -> None:
    assert chosen(UpgradeState(), broken) == (NEW, "Operator")


def test_choice_is_stable_once_it_is_recorded() -> None:
    """A reconcile that follows on its own state chooses the same, under any operator."""
    for state in (UpgradeState(), PINNED, UpgradeState(image="shop:1", source="Spec")):
        first = choose_image(consumer_group(), state, None, default=OLD)
        recorded = UpgradeState(image=first.name, source=first.source)
        assert choose_image(consumer_group(), recorded, None, default=NEW).name == first.name


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
        assert f"image is now {NEW}: set spec.image" in found.message
