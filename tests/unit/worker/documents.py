"""A worker.json that is right, for tests to change one thing in."""

from __future__ import annotations

from typing import Any


def worker_document(**changes: Any) -> dict[str, Any]:
    """The contract's own example; `changes` replace top-level fields."""
    return {
        "version": 1,
        "namespace": "default",
        "name": "flights",
        "uid": "0d9c2f3e-7a51-4b7e-9d5e-1f6f6f4c0001",
        "groupId": "flights",
        "revision": "a1b2c3d4e5",
        "topics": ["flights"],
        "topicPattern": None,
        "connection": {"bootstrapServers": ["127.0.0.1:9092"], "tls": None, "sasl": None},
        "handler": {
            "python": {"callable": "handler:handle", "path": "/etc/consumer-fleet/handler"},
            "http": None,
            "timeoutSeconds": 60,
            "decode": {"key": "Bytes", "value": "Json"},
            "outputs": ["flights-done"],
            "concurrency": 1,
        },
        "consumer": {
            "protocol": "Classic",
            "assignors": ["range"],
            "sessionTimeoutSeconds": 45,
            "heartbeatIntervalSeconds": 3,
            "staticMembership": True,
            "maxPollIntervalSeconds": 300,
            "maxPollRecords": 500,
            "autoOffsetReset": "Earliest",
            "isolationLevel": "ReadUncommitted",
            "commitIntervalSeconds": 5,
            "properties": {},
        },
        "failedTopic": "_fleet.flights.failed",
        "retry": None,
        "log": {"level": "Info", "format": "Json"},
        "skipFile": "/etc/fleet/offsets/skip.json",
        "httpPort": 8080,
        "drainSeconds": 20,
    } | changes


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the document with the field at the dotted `path` set to `value`, or removed when `value` is ..."""
    head, _, rest = path.partition(".")
    copy = dict(document)
    if rest:
        copy[head] = changed(copy[head], rest, value)
    elif value is ...:
        del copy[head]
    else:
        copy[head] = value
    return copy
