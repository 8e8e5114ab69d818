"""Write each payment to the topic of its method, and large payments to the auditors' topic as well.

All outputs of a record are acknowledged before its offset is committed. After a crash, some outputs may be written
twice, with the same key and the same header `source`, by which a reader can recognize duplicates. Test payments are
dropped on purpose, and counted. A payment that cannot be parsed goes to the failed topic.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

from fleet_consumer import Fatal, Produce, Record, Skip

TOPICS = {"card": "payments-card", "transfer": "payments-transfer"}
IGNORED = frozenset({"test"})
AUDIT = "payments-audit"
AUDITED_FROM = Decimal(10_000)


def handle(record: Record) -> list[Produce]:
    """Return the payment for one or two topics."""
    payment = payment_of(record.value)
    if payment["method"] in IGNORED:
        raise Skip("a test payment")
    topic = TOPICS.get(payment["method"])
    if topic is None:
        raise Fatal("the payment's method has no topic")
    topics = [topic, AUDIT] if payment["amount"] >= AUDITED_FROM else [topic]
    source = f"{record.topic}-{record.partition}-{record.offset}".encode()
    headers = [*record.headers, ("source", source)]
    return [Produce(each, record.value, key=record.key, headers=headers) for each in topics]


def payment_of(value: bytes | None) -> dict[str, Any]:
    """Parse method and amount of a payment. The payment's bytes are written to the topics unchanged."""
    try:
        found = json.loads(value or b"", parse_float=Decimal)
        amount = Decimal(found["amount"])
        if not amount.is_finite():
            raise ValueError("NaN or an infinity")
        return {"method": str(found["method"]), "amount": amount}
    except (ValueError, TypeError, KeyError, InvalidOperation) as error:
        raise Fatal(f"this is no payment: {type(error).__name__}") from error
