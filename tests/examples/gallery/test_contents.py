"""Handlers of the gallery that need nothing but the record: schema validation and routing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_consumer.retry.failure import Drop
from tests.examples.gallery.performed import Performed, performed, record

ORDER = {"id": "o1", "placed": "2026-11-30", "items": [{"item": "tea", "count": 2}]}


@pytest.fixture
def checked(packages: Path) -> Iterator[Performed]:
    with performed("schema_validation") as handler:
        yield handler


def test_valid_order_goes_on_as_it_came(checked: Performed) -> None:
    raw = json.dumps(ORDER, indent=1).encode()
    order = record(raw, headers=[("trace", b"1")])
    (first,), (second,) = checked.results(order), checked.results(order)
    assert first == second
    (output,) = first.produces
    assert (output.topic, output.value) == ("orders-valid", raw)
    assert list(output.headers) == [("trace", b"1"), ("schema", b"urn:example:order:1")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({**ORDER, "items": [{"item": "tea", "count": 0}]}, "$.items[0].count: exclusiveMinimum"),
        ({**ORDER, "placed": "yesterday at Ada's"}, "$.placed: pattern"),
        ({"id": "o1"}, "$: required"),
        (b"{", "$: this is not JSON"),
        (None, "$: an order cannot be null"),
    ],
)
def test_invalid_order_fails_with_the_place_and_without_the_value(
    checked: Performed, value: object, reason: str
) -> None:
    assert checked.failed(record(value)) == f"fatal: {reason}"


@pytest.fixture
def routed() -> Iterator[Performed]:
    with performed("route_by_content") as handler:
        yield handler


def test_payment_goes_to_its_topic_and_a_large_one_to_the_auditors(routed: Performed) -> None:
    small, large = {"method": "card", "amount": "9999.99"}, {"method": "transfer", "amount": 10000}
    assert routed.outputs(record(small)) == [("payments-card", small)]
    assert routed.outputs(record(large)) == [("payments-transfer", large), ("payments-audit", large)]
    payment = record(large, topic="payments", partition=0, offset=5)
    (first,), (second,) = routed.results(payment), routed.results(payment)
    assert first == second
    assert {dict(each.headers)["source"] for each in first.produces} == {b"payments-0-5"}


def test_test_payment_is_dropped_and_a_strange_one_fails(routed: Performed) -> None:
    (verdict,) = routed.verdicts(record({"method": "test", "amount": 1}))
    assert isinstance(verdict, Drop)
    assert routed.failed(record({"method": "gold", "amount": 1})) == "fatal: the payment's method has no topic"
    malformed: tuple[object, ...] = (
        b"",
        b"{",
        {"amount": 1},
        {"method": "card", "amount": "much"},
        b'{"method": "card", "amount": NaN}',
        [],
    )
    for bad in malformed:
        assert routed.failed(record(bad)).startswith("fatal: this is no payment")
    assert routed.failed(record(None)).startswith("fatal: this is no payment")
