"""Records with headers that Kafka's protocol does not allow but brokers accept."""

from __future__ import annotations

import warnings
from typing import Any


class _Name(str):
    """A header name that is sent as bytes that are not text."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfebad"


def send_with_odd_name(bootstrap: str, topic: str, value: bytes) -> None:
    """Write one record to partition 0 with two headers: `trace`, and one whose name is not UTF-8."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # The only client here that can send such a name.
        from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        producer.send(topic, value, key=b"k", headers=[("trace", b"x"), (_Name("b"), b"y")], partition=0).get(30)
    finally:
        producer.close()
