"""Compute the price of one piece of each order. An order with count 0 raises ZeroDivisionError."""

from __future__ import annotations

import json

from fleet_consumer import Produce, Record


def handle(record: Record) -> Produce:
    order = record.value
    price = order["total"] / order["count"]
    return Produce("orders-done", json.dumps({"item": order["item"], "price": price}), key=record.key)
