"""The corrected handler for flights: a cancelled flight becomes an output record instead of an error.

When the ConfigMap `flights-handler` has this handler, the failed flights that `redrive.yaml` puts back succeed. Even
after retries, `record.partition` and `record.offset` are those of the source topic, so a report can count flights by
their origin.
"""

from __future__ import annotations

import json

from fleet_consumer import Produce, Record

OUTPUT = "flights-done"


def handle(record: Record) -> Produce:
    """Return a line about the flight's departure or cancellation."""
    flight = record.value
    line = {
        "flight": f"{flight['carrier']}{flight['flight']}",
        "origin": flight["origin"],
        "dest": flight["dest"],
        "cancelled": flight["dep_time"] is None,
        "dep_delay": flight["dep_delay"],
        "arr_delay": flight["arr_delay"],
    }
    return Produce(OUTPUT, json.dumps(line), key=f"{record.partition}-{record.offset}")
