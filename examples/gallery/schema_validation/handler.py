"""Orders checked against a JSON Schema: good ones to `orders-valid`, bad ones to the failed topic with the reason.

The reason names the place and the rule (`$.items[0].count: exclusiveMinimum`), not the value: error texts are written
to logs and headers, where customers' data should not be. Put failed orders back after a correction of the schema.
"""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from fleet_consumer import Fatal, Produce, Record

OUTPUT = "orders-valid"
SCHEMA = json.loads(Path(__file__).with_name("order.schema.json").read_text())
Draft202012Validator.check_schema(SCHEMA)  # at the import: a broken schema is refused by the check of the revision
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
VERSION = str(SCHEMA["$id"]).encode()


def handle(record: Record) -> Produce:
    """Return the order as it came, with the schema's id in a header."""
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
