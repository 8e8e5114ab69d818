"""Check orders against a JSON Schema: write valid orders to `orders-valid`, and fail invalid orders with the reason.

The reason has the JSON path and the violated rule (`$.items[0].count: exclusiveMinimum`), but not the value, because
logs and headers contain it, and they should not have customers' data. Put failed orders back after you correct the
schema.
"""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from fleet_consumer import Fatal, Produce, Record

OUTPUT = "orders-valid"
SCHEMA = json.loads(Path(__file__).with_name("order.schema.json").read_text())
Draft202012Validator.check_schema(SCHEMA)  # runs at import, so the check of the revision refuses a broken schema
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
VERSION = str(SCHEMA["$id"]).encode()


def handle(record: Record) -> Produce:
    """Return the unchanged order, with the schema's id in a header."""
    if record.value is None:
        raise Fatal("$: an order cannot be null")
    try:
        order = json.loads(record.value)
    except ValueError as error:
        raise Fatal("$: this is not JSON") from error
    worst = best_match(VALIDATOR.iter_errors(order))
    if worst is not None:
        raise Fatal(f"{worst.json_path}: {worst.validator}")
    return Produce(OUTPUT, record.value, key=record.key, headers=[*record.headers, ("schema", VERSION)])
