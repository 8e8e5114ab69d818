"""Kafka's wire protocol: one module for each API, named after it.

Messages are frozen dataclasses; field names are those of Kafka's schemas in snake case. Error codes stay plain
numbers (see `errors`). No I/O. Bytes from a peer never raise anything but MalformedMessage.
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
