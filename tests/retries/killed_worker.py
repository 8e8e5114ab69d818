"""A worker that kills itself (SIGKILL) at one point of a retry publish: `python -m tests.retries.killed_worker POINT
run …`.

It is the worker of the command line, except for the producer or consumer of its sessions. The points: `before-produce`,
after the handler and before any write; `after-ack`, with the copy in the managed topic and nothing committed;
`after-commit`, with both.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract import naming
from fleet_consumer.librdkafka.producer import RecordProducer, SendHandle
from fleet_consumer.worker import cli, session


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Point:
    """The progress of this process's first retry publish, as its producer sees it."""

    acknowledged = False


class DiesBeforeProducing(RecordProducer):
    """Dies instead of sending a record to a managed topic."""

    def send(self, topic: str, **record: Any) -> SendHandle:
        if naming.is_managed_topic(topic):
            _die()
        return super().send(topic, **record)


class TellsAcknowledgement(RecordProducer):
    """Records that a record is in a managed topic, before its caller can see it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._publishes: list[SendHandle] = []

    def send(self, topic: str, **record: Any) -> SendHandle:
        handle = super().send(topic, **record)
        if naming.is_managed_topic(topic):
            self._publishes.append(handle)
        return handle

    def flush(self, timeout_s: float) -> int:
        left = super().flush(timeout_s)
        if any(handle.done and handle.error is None for handle in self._publishes):
            Point.acknowledged = True
            self._on_acknowledged()
        return left

    def _on_acknowledged(self) -> None:
        """Continues."""


class DiesAfterAcknowledgement(TellsAcknowledgement):
    """Dies before its caller learns of it."""

    def _on_acknowledged(self) -> None:
        _die()


class DiesAfterCommitting(Consumer):
    """Dies on the broker's answer to the first commit that was sent after the acknowledgement."""

    def commit_async(self, offsets: Any = None, callback: Callable[..., None] | None = None) -> None:
        after_publish = Point.acknowledged

        def answered(committed: Mapping[Any, Any], error: Exception | None) -> None:
            if after_publish and error is None:
                _die()
            if callback is not None:
                callback(committed, error)

        super().commit_async(offsets, answered)


def main(arguments: Sequence[str]) -> int:
    """Take the point, then everything that `fleet-consumer` takes."""
    point, *command = arguments
    parts: dict[str, dict[str, type]] = {
        "before-produce": {"RecordProducer": DiesBeforeProducing},
        "after-ack": {"RecordProducer": DiesAfterAcknowledgement},
        "after-commit": {"RecordProducer": TellsAcknowledgement, "Consumer": DiesAfterCommitting},
    }
    for name, part in parts[point].items():
        setattr(session, name, part)
    return cli.main(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
