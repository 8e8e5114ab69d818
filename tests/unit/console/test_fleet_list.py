"""The console's list: only what the viewer may read, trouble first, in pages."""

from __future__ import annotations

import pytest

from fleet_operator.console.views.fleets import (
    PAGE_ROWS,
    Health,
    ListQuery,
    fleet_list,
    fleet_row,
    in_order,
    read_query,
)
from tests.unit.console.bodies import condition, fleet


def bad(name: str, namespace: str = "shop") -> dict[str, object]:
    verdicts = [condition("Ready", "False", "PodsNotReady"), condition("Degraded", "True", "BreakerOpen")]
    return fleet(name, namespace, conditions=verdicts)


def test_row_has_the_numbers_of_the_status() -> None:
    row = fleet_row(fleet())
    assert (row.namespace, row.name, row.state, row.members, row.ready, row.target) == (
        "shop",
        "orders",
        "Stable",
        2,
        2,
        2,
    )
    assert (row.lag, row.behind, row.failed, row.waiting) == ("~2k", "~5m", 3, "~64")
    assert (row.arrival, row.raw, row.scaled) == (120.0, 1.7, True)


def test_absent_status_is_unknown_and_never_zero() -> None:
    body = fleet()
    del body["status"]
    row = fleet_row(body)
    assert (row.lag, row.lag_records, row.members, row.failed, row.state) == ("unknown", None, None, None, "Unknown")
    assert (row.ready, row.target) == (None, None)
    assert (row.health, row.reason) == (Health.ATTENTION, "NotYetReconciled")


def test_sum_of_failed_records_says_that_numbers_are_missing() -> None:
    plain = fleet("plain", retry={})
    del plain["spec"]["retry"]
    known, unknown, without = (fleet_row(body) for body in (fleet(), fleet("new", retry={}), plain))
    found = fleet_list([known, unknown, without], ListQuery(), None)
    assert (found.failed, found.failed_complete) == (3, False)
    assert fleet_list([known, without], ListQuery(), None).failed_complete


@pytest.mark.parametrize("hostile", ["nan", "-1", "inf", "1e999", "<b>", "", [], {}])
def test_numbers_that_people_write_into_a_status_break_nothing(hostile: object) -> None:
    assert fleet_row(fleet(scaling={"arrivalPerSecond": hostile})).arrival is None


def test_trouble_comes_first_and_says_its_reason() -> None:
    rows = [fleet_row(body) for body in (fleet("b", retry={}), bad("z"), fleet("a"))]
    found = fleet_list(in_order(rows), ListQuery(), None)
    assert [(row.name, row.health, row.reason) for row in found.rows] == [
        ("z", Health.BAD, "BreakerOpen"),
        ("a", Health.ATTENTION, "FleetReady"),
        ("b", Health.GOOD, "FleetReady"),
    ]
    assert (found.bad, found.attention, found.good, found.failed) == (1, 1, 1, 6)


def test_fleets_of_other_namespaces_are_neither_listed_nor_counted() -> None:
    rows = [fleet_row(fleet("a", "shop")), fleet_row(bad("b", "bank")), fleet_row(bad("c", "vault"))]
    found = fleet_list(rows, ListQuery(), {"shop"})
    assert ([row.key for row in found.rows], found.total, found.matched, found.bad) == ([("shop", "a")], 1, 1, 0)
    assert fleet_list(rows, ListQuery(namespace="bank"), {"shop"}).matched == 0
    assert fleet_list(rows, ListQuery(text="c"), {"shop"}).matched == 0
    assert fleet_list(rows, ListQuery(), set()).total == 0


def test_filters_select_by_text_trouble_and_failures() -> None:
    rows = [fleet_row(body) for body in (fleet("orders"), fleet("flights", retry={"failed": 0}), bad("bills"))]

    def names(**fields: str) -> list[str]:
        return [row.name for row in fleet_list(in_order(rows), read_query(fields), None).rows]

    assert names(q=" FLI ") == ["flights"]
    assert names(show="trouble") == ["bills"]
    assert names(show="failed") == ["bills", "orders"]


def test_pages_cover_every_fleet_once() -> None:
    rows = [fleet_row(fleet(f"g{number:05}")) for number in range(2 * PAGE_ROWS + 1)]
    pages = [fleet_list(rows, ListQuery(page=number), None) for number in (1, 2, 3)]
    assert [len(page.rows) for page in pages] == [PAGE_ROWS, PAGE_ROWS, 1]
    assert len({row.key for page in pages for row in page.rows}) == len(rows)
    assert fleet_list(rows, ListQuery(page=99), None).page == 3


@pytest.mark.parametrize("page", ["0", "-1", "x", "²", "9" * 5000, ""])
def test_page_numbers_that_make_no_sense_are_the_first_page(page: str) -> None:
    assert read_query({"page": page}).page == 1


def test_a_filter_has_a_bounded_length() -> None:
    assert len(read_query({"q": "x" * 10_000}).text) == 253
