"""Consumer Fleet's consumer: a library (`Consumer`) and the contract of the handlers that run on it.

`Consumer` is imported on first use, so that the pure parts (`fleet_consumer.naming`) cost no librdkafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet_consumer.record import Delivery, Fatal, Produce, Record, RetryAfter, Skip, TopicPartition

if TYPE_CHECKING:
    from fleet_consumer.consumer import Consumer, ConsumerSettings

__all__ = [
    "Consumer",
    "ConsumerSettings",
    "Delivery",
    "Fatal",
    "Produce",
    "Record",
    "RetryAfter",
    "Skip",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    if name in {"Consumer", "ConsumerSettings"}:
        from fleet_consumer import consumer

        return getattr(consumer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
