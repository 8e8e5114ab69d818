"""Consumer Fleet's consumer: a library (`Consumer`) and the contract of the handlers that run on it.

Names that need librdkafka or sockets are imported on first use, so that pure modules such as
`fleet_consumer.contract.naming` can be imported without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fleet_consumer.record import Delivery, Fatal, Produce, Record, RetryAfter, Skip, TimestampType, TopicPartition

if TYPE_CHECKING:
    from fleet_consumer.consumer.async_consumer import AsyncConsumer
    from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
    from fleet_consumer.group import errors
    from fleet_consumer.group.membership import Membership, OffsetAndMetadata, OffsetAndTimestamp
    from fleet_consumer.group.metadata import Node, PartitionInfo
    from fleet_consumer.net import ConnectionSettings, OAuthSettings, OAuthToken, SaslSettings, TlsSettings
    from fleet_consumer.record import Records, Run

__all__ = [
    "AsyncConsumer",
    "ConnectionSettings",
    "Consumer",
    "ConsumerSettings",
    "Delivery",
    "Fatal",
    "Membership",
    "Node",
    "OAuthSettings",
    "OAuthToken",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Produce",
    "Record",
    "Records",
    "RetryAfter",
    "Run",
    "SaslSettings",
    "Skip",
    "TimestampType",
    "TlsSettings",
    "TopicPartition",
    "errors",
]

_HOMES = {
    "fleet_consumer.consumer.async_consumer": ("AsyncConsumer",),
    "fleet_consumer.consumer.consumer": ("Consumer", "ConsumerSettings"),
    "fleet_consumer.record": ("Records", "Run"),
    "fleet_consumer.group.membership": ("Membership", "OffsetAndMetadata", "OffsetAndTimestamp"),
    "fleet_consumer.group.metadata": ("Node", "PartitionInfo"),
    "fleet_consumer.net": ("ConnectionSettings", "OAuthSettings", "OAuthToken", "SaslSettings", "TlsSettings"),
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("fleet_consumer.group.errors")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
