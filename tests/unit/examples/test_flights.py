"""The flights example is loaded as a worker loads it, and does what its documentation says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.handlers.loading import Handler, load_handler
from fleet_consumer.handlers.performing import Outputs, decoder
from fleet_consumer.record import Record

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "flights"


@pytest.fixture
def handler() -> Iterator[Handler]:
    yield from loaded(FOLDER)


@pytest.fixture
def fixed() -> Iterator[Handler]:
    yield from loaded(FOLDER / "fixed")


def loaded(folder: Path) -> Iterator[Handler]:
    path = list(sys.path)
    yield load_handler("handler:handle", str(folder))
    sys.path[:] = path
    del sys.modules["handler"]


def flight(**changes: Any) -> Record:
    row = {
        "year": 2013,
        "dep_time": 517,
        "dep_delay": 2,
        "arr_delay": None,
        "carrier": "UA",
        "flight": 1545,
        "origin": "EWR",
        "dest": "IAH",
    } | changes
    decode = decoder("value", "Json")
    assert decode is not None
    return Record("flights", 3, 42, 0, b"UA1545", decode(json.dumps(row).encode()))


def test_flight_that_left_becomes_a_record_that_names_its_origin(handler: Handler) -> None:
    (output,) = Outputs(["flights-done"]).records_in(handler.call(flight()))
    assert (output.topic, output.key) == ("flights-done", "3-42")
    assert output.value is not None
    assert json.loads(output.value) == {
        "flight": "UA1545",
        "origin": "EWR",
        "dest": "IAH",
        "dep_delay": 2,
        "arr_delay": None,
    }


def test_flight_without_a_departure_was_cancelled(handler: Handler) -> None:
    with pytest.raises(ValueError, match="cancelled: UA1545 from EWR to IAH"):
        handler.call(flight(dep_time=None))


def test_corrected_handler_accepts_cancelled_flights_too(fixed: Handler) -> None:
    (left,) = Outputs(["flights-done"]).records_in(fixed.call(flight()))
    (cancelled,) = Outputs(["flights-done"]).records_in(fixed.call(flight(dep_time=None)))
    assert (left.key, cancelled.key) == ("3-42", "3-42")
    assert [json.loads(output.value or b"")["cancelled"] for output in (left, cancelled)] == [False, True]
