"""The team's handler, which converts orders to upper case."""

from __future__ import annotations

from fleet_consumer import Produce, Record


def handle(record: Record) -> Produce:
    """Return the order for `orders-done`; a tombstone stays a tombstone."""
    return Produce("orders-done", record.value and record.value.upper(), key=record.key)
