"""skip.json as it is written and as it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_consumer.contract.skips import RECORDS_MAX, Place, SkipsInvalid, parse_skips, render_skips

PLACES = [Place("orders", 3, 1734), Place("_fleet.orders.retry.5m", 0, 7), Place("orders", 0, 0)]


def test_places_come_back_as_they_were_written() -> None:
    assert parse_skips(json.loads(json.dumps(render_skips("u", PLACES))), "u") == frozenset(PLACES)
    assert render_skips("u", PLACES) == render_skips("u", reversed(PLACES))
    assert parse_skips(render_skips("u", []), "u") == frozenset()


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"version": 2, "uid": "u", "records": []},
        {"version": 1, "records": []},
        {"version": 1, "uid": "of another", "records": []},
        {"version": 1, "uid": "u", "records": {}},
        {"version": 1, "uid": "u", "records": [], "more": 1},
        {"version": 1, "uid": "u", "records": [{"topic": "t", "partition": 0}]},
        {"version": 1, "uid": "u", "records": [{"topic": "t", "partition": -1, "offset": 0}]},
        {"version": 1, "uid": "u", "records": [{"topic": "", "partition": 0, "offset": 0}]},
        {"version": 1, "uid": "u", "records": [{"topic": "t", "partition": 0, "offset": True}]},
        {"version": 1, "uid": "u", "records": [{"topic": "t", "partition": 0, "offset": 0}] * (RECORDS_MAX + 1)},
    ],
)
def test_anything_else_is_refused_with_its_place(document: Any) -> None:
    with pytest.raises(SkipsInvalid, match=r"skip\.json|version|uid|records"):
        parse_skips(document, "u")
