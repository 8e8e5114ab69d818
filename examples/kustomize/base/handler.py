"""The team's handler: upper case, as in the other first examples."""

from __future__ import annotations

from fleet_consumer import Produce, Record


def handle(record: Record) -> Produce:
    """Return the order for `orders-done`; a tombstone stays one."""
    return Produce("orders-done", record.value and record.value.upper(), key=record.key)
