"""JSON that tenants wrote is read or refused, and never raises."""

from __future__ import annotations

import pytest

from fleet_operator.clients.worker_status import parse_member
from fleet_operator.planning import times
from fleet_operator.planning.fleet.parsing import read_check, read_revision
from fleet_operator.planning.foreign_json import read_json
from fleet_operator.planning.redrive.phase import read_progress
from fleet_operator.planning.retry.records import read_policy_record, read_published
from fleet_operator.planning.state.group import RetriesState

DEEP = '{"a":' * 50_000 + "1" + "}" * 50_000


@pytest.mark.parametrize("text", [DEEP, "[" * 50_000, "NaN", '{"a": Infinity}', "1e999", "", "{", b"\xff"])
def test_text_that_is_no_usable_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_no_reader_of_foreign_text_fails_on_deep_nesting() -> None:
    metadata = {"name": "x", "annotations": {"consumerfleet.io/revision": "a"}}
    keys = ("pod-template.json", "policies.json", "policy.json", "worker.json")
    config_map = {"metadata": metadata, "data": dict.fromkeys(keys, DEEP)}
    assert read_revision(config_map, {}, config_map_names=()) is None
    assert read_published(config_map, RetriesState()) is None
    assert read_policy_record(config_map) is None
    assert read_progress([(1, DEEP)]) is None
    assert parse_member("orders-0", DEEP.encode()) is None
    ended = {"state": {"terminated": {"exitCode": 20, "message": DEEP}}}
    check = read_check({"metadata": {}, "status": {"phase": "Failed", "containerStatuses": [ended]}})
    assert (check.ok, check.reason) == (False, "CheckFailed")


@pytest.mark.parametrize("number", ["1e999", "1e300", "99999999999999999999", "-99999999999999999999"])
def test_numbers_that_no_status_can_hold_are_refused(number: str) -> None:
    stuck = f'{{"stuck": [{{"topic": "t", "partition": 0, "offset": {number}}}]}}'
    assert parse_member("orders-0", stuck.encode()) is None
    assert parse_member("orders-0", f'{{"generation": {number}}}'.encode()) is None


def test_times_of_others_are_shown_however_late() -> None:
    assert times.to_text(1e300) == "9999-12-31T23:59:59Z"
    assert times.to_text(-5.0) == "1970-01-01T00:00:00Z"
