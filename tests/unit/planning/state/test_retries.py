"""The past of a group's retries, as its state keeps it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_operator.planning.state.document import UnreadableStateError, read_state, write_state
from fleet_operator.planning.state.group import GroupState, Redriven, RetriesState, RetrySizing

NOW = 1_800_000_000.0
FULL = RetriesState(
    published_at=NOW,
    superseded={"0a1b2c3d4e": NOW - 60.5},
    leaving=("5s",),
    drained=("1h", "2h"),
    ending_since=NOW - 1,
    redriven=Redriven("6f6e6520-0000-4000-8000-000000000001", 1_070),
    sizing=RetrySizing(count=0, changed_at=NOW, shrunk_at=NOW - 30, short=2, short_at=NOW - 20, most=9),
)


def read(document: dict[str, Any]) -> RetriesState:
    return read_state(GroupState, {"retries": document}, "orders").retries


@pytest.mark.parametrize("state", [FULL, RetriesState(published_at=0.0), RetriesState()], ids=["full", "lost", "empty"])
def test_document_is_read_back(state: RetriesState) -> None:
    written = json.loads(json.dumps(write_state(GroupState(retries=state), {})))
    assert read(written.get("retries", {})) == state


@pytest.mark.parametrize(
    "document",
    [
        {"published_at": "soon"},
        {"published_at": -1},
        {"ending_since": float("inf")},
        {"superseded": ["0a1b2c3d4e"]},
        {"superseded": {"0a1b2c3d4e": "yesterday"}},
        {"leaving": "5s,30s"},
        {"drained": {"5s": 1}},
        {"sizing": {"shrunk_at": "soon"}},
        {"sizing": {"short": {}}},
        {"sizing": {"short_at": float("inf")}},
        {"sizing": {"count": -1}},
        {"redriven": {"to": 5}},
        *({"redriven": {"topic_id": "t1", "to": to}} for to in (-1, None, 1.5, "many")),
    ],
)
def test_document_of_somebody_else_is_not_read(document: dict[str, Any]) -> None:
    with pytest.raises(UnreadableStateError, match=r"retries\."):
        read(document)
