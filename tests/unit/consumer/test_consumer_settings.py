"""A consumer's settings: values derived from them, and those that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_consumer import ConnectionSettings, ConsumerSettings
from fleet_consumer.assignors import load
from fleet_consumer.consumer.settings import group_settings


def settings(**changes: Any) -> ConsumerSettings:
    connection = ConnectionSettings(bootstrap_servers=("localhost:9092",), client_id="c")
    return ConsumerSettings(connection=connection, group_id="g", **changes)


def test_defaults_are_javas_but_for_reset_and_automatic_commits() -> None:
    default = settings()
    assert default.assignors == ("range", "cooperative-sticky")
    assert (default.session_timeout_ms, default.heartbeat_interval_ms, default.max_poll_interval_ms) == (
        45_000,
        3_000,
        300_000,
    )
    assert (default.max_poll_records, default.isolation_level) == (500, "read_uncommitted")
    assert (default.auto_offset_reset, default.auto_commit_interval_ms) == ("earliest", None)


def test_rack_goes_to_group_and_data_plane() -> None:
    racked = settings(client_rack="r1")
    assert group_settings(racked).rack == "r1"
    assert racked.data_plane_properties == {"client.rack": "r1"}
    by_property = settings(properties={"client.rack": "r2"})
    assert group_settings(by_property).rack == "r2"
    assert group_settings(settings()).rack is None


def test_rebalance_timeout_defaults_to_the_poll_interval() -> None:
    assert group_settings(settings(max_poll_interval_ms=60_000)).rebalance_timeout_s == 60.0
    assert group_settings(settings(rebalance_timeout_ms=5_000)).rebalance_timeout_s == 5.0


def test_assignor_may_be_an_object() -> None:
    assert settings(assignors=(load("sticky"), "range")).assignors[1] == "range"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"assignors": ()}, "assignors"),
        ({"assignors": "range"}, "assignors is a string"),
        ({"auto_offset_reset": "by_duration:1H"}, "by_duration"),
        ({"auto_commit_interval_ms": 0}, "auto_commit_interval_ms"),
        ({"isolation_level": "serializable"}, "isolation_level"),
        ({"max_poll_records": 0}, "max_poll_records"),
        ({"session_timeout_ms": 3_000}, "heartbeat_interval_ms"),
        ({"client_rack": "a", "properties": {"client.rack": "b"}}, "client_rack"),
        ({"properties": {"enable.auto.commit": "true"}}, "enable.auto.commit"),
    ],
)
def test_impossible_settings_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        settings(**changes)
