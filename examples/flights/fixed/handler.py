"""The corrected flights' handler: a cancelled flight is a record instead of an error.

With this in the ConfigMap `flights-handler`, the Redrive of `redrive.yaml` puts the failed flights back, and they
succeed. `record.partition` and `record.offset` are still those of the source topic, so that a report counts flights by
their origin, also after retries.
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
