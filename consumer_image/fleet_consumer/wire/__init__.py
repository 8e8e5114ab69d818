"""Kafka's wire protocol, as far as Consumer Fleet speaks it: one module for each API, named after it.

Messages are frozen dataclasses whose fields carry the names of Kafka's schemas in snake case. Error codes stay plain
numbers (`errors` explains them). Nothing here may do I/O, and no bytes from a peer may do worse than raise
MalformedMessage.
"""

from __future__ import annotations

from fleet_consumer.wire.errors import ErrorCode, KafkaError, describe, is_retriable
from fleet_consumer.wire.failures import MalformedMessage, UnencodableMessage
from fleet_consumer.wire.message import Message, Request, Response

__all__ = [
    "ErrorCode",
    "KafkaError",
    "MalformedMessage",
    "Message",
    "Request",
    "Response",
    "UnencodableMessage",
    "describe",
    "is_retriable",
]
