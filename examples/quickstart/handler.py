"""The price of one piece of each order; an order of no pieces makes it raise ZeroDivisionError."""

from __future__ import annotations

import json

from fleet_consumer import Produce, Record


def handle(record: Record) -> Produce:
    order = record.value
    price = order["total"] / order["count"]
    return Produce("orders-done", json.dumps({"item": order["item"], "price": price}), key=record.key)
