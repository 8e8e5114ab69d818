"""The verdicts of a fleet's revisions, as the group's state keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_operator.planning.state.document import UnreadableStateError, read_state, write_state
from fleet_operator.planning.state.group import FleetState, GroupState, RevisionState, RevisionVerdict

NOW = 1_800_000_000.0
GOOD = RevisionVerdict(state=RevisionState.GOOD, since=NOW, checked=True)
REFUSED = RevisionVerdict(
    state=RevisionState.REFUSED,
    since=NOW,
    reason="HandlerImportFailed",
    message="no module\nnamed 'shöp'",
    request="r1",
    check="u1",
)


def read(document: dict[str, Any]) -> FleetState:
    return read_state(GroupState, {"fleet": document}, "orders").fleet


@pytest.mark.parametrize(
    "fleet",
    [
        FleetState(wanted="b", verdicts={"a": GOOD, "b": REFUSED}),
        FleetState(verdicts={"a": RevisionVerdict()}),
        FleetState(),
    ],
    ids=["full", "new", "empty"],
)
def test_document_is_read_back(fleet: FleetState) -> None:
    assert read(json.loads(json.dumps(write_state(GroupState(fleet=fleet), {}))).get("fleet", {})) == fleet


def test_fields_of_a_verdict_at_their_default_are_left_out() -> None:
    written = write_state(GroupState(fleet=FleetState(verdicts={"a": RevisionVerdict(), "b": GOOD})), {})
    assert written["fleet"] == {"verdicts": {"a": {}, "b": {"state": "Good", "since": NOW, "checked": True}}}


@pytest.mark.parametrize(
    "document",
    [
        {"wanted": 7},
        {"verdicts": ["a"]},
        {"verdicts": {"a": "Good"}},
        {"verdicts": {"a": {"state": "Excellent"}}},
        {"verdicts": {"a": {"since": "yesterday"}}},
        {"verdicts": {"a": {"checked": "perhaps"}}},
        {"verdicts": {"a": {"reason": None}}},
    ],
)
def test_document_of_somebody_else_is_not_read(document: dict[str, Any]) -> None:
    """Somebody edited it: nothing may be decided by what it says, and nothing without it."""
    with pytest.raises(UnreadableStateError, match=r"fleet\."):
        read(document)


@pytest.mark.parametrize(
    ("verdicts", "ran"),
    [({}, False), ({"a": RevisionVerdict(checked=True), "b": REFUSED}, False), ({"a": GOOD, "b": REFUSED}, True)],
)
def test_fleet_with_a_good_revision_ran_once(verdicts: dict[str, RevisionVerdict], ran: bool) -> None:
    assert FleetState(verdicts=verdicts).was_good is ran
