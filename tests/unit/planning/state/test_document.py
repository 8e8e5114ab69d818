"""States as documents: round trips, unknown fields, and documents that are not ours."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.state.document import UnreadableStateError, read_state, write_state
from fleet_operator.planning.state.group import GroupState, Phase, Upgrade, UpgradeState

STATE = GroupState(
    upgrade=UpgradeState(image="worker:1", source="Operator", connection="c", last=Upgrade(Phase.FAILED, "worker:1"))
)


def read(document: dict[str, Any]) -> GroupState:
    return read_state(GroupState, document, "orders.consumergroup")


def test_state_reads_back_what_it_wrote() -> None:
    assert read(write_state(STATE, {})) == STATE
    assert read(write_state(GroupState(), {})) == GroupState()


def test_no_document_is_an_empty_state() -> None:
    assert read({}) == GroupState()


def test_fields_at_their_default_are_left_out() -> None:
    assert write_state(GroupState(upgrade=UpgradeState(image="worker:1")), {}) == {
        "version": 1,
        "upgrade": {"image": "worker:1"},
    }


def test_fields_of_a_newer_operator_are_kept_and_ours_are_replaced() -> None:
    before = {"version": 1, "later": {"a": 1}, "upgrade": {"connection": "old", "later": 2}}
    written = write_state(GroupState(upgrade=UpgradeState(image="worker:1")), before)
    assert written == {"version": 1, "later": {"a": 1}, "upgrade": {"image": "worker:1", "later": 2}}
    assert read(written) == GroupState(upgrade=UpgradeState(image="worker:1"))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"version": 2}, "has version 2"),
        ({"version": "1"}, "has version"),
        ({"upgrade": 7}, "upgrade"),
        ({"upgrade": {"image": ["worker:1"]}}, r"upgrade\.image"),
        ({"upgrade": {"last": {"phase": "Else"}}}, r"upgrade\.last\.phase"),
    ],
)
def test_document_that_is_not_ours_is_refused_by_name(document: dict[str, Any], why: str) -> None:
    with pytest.raises(UnreadableStateError, match=f"orders.consumergroup .*{why}") as caught:
        read(document)
    assert caught.value.problem.reason == "StateUnreadable"
