"""The corrected handler: the price is null if an order has count 0."""

from __future__ import annotations

import json

from fleet_consumer import Produce, Record


def handle(record: Record) -> Produce:
    order = record.value
    price = order["total"] / order["count"] if order["count"] else None
    return Produce("orders-done", json.dumps({"item": order["item"], "price": price}), key=record.key)
