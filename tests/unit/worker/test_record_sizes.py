"""No producer of a worker, a command or a Backfill refuses on its own a record that its topic takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.backfill.writing import TopicWriter
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract import backfill_config, redrive_config, worker_config
from fleet_consumer.handlers.loading import Handler
from fleet_consumer.librdkafka import producer as module
from fleet_consumer.record import Record
from fleet_consumer.worker.commands import redrive, skip
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.config.settings import PodIdentity
from fleet_consumer.worker.consume.outbox import Outgoing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.session import WorkerContext, open_session
from fleet_consumer.worker.stats import Stats
from tests.unit.backfill.documents import backfill_document
from tests.unit.redrive.documents import document
from tests.unit.worker.documents import worker_document

CONFIG = worker_config.parse_config(worker_document())


class Made(BaseException):
    """A producer of librdkafka was about to be made, with these settings. An Exception would be a failed write."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings


def without_policies() -> None:
    """A worker of a group without retries writes an output; its failed records go the same way."""
    worker = WorkerContext(
        config=CONFIG,
        identity=PodIdentity("w-0", None),
        role=Role.MAIN,
        handler=Handler("handler:handle", lambda record: None),
        executor=None,
        policy_file=None,
        skip_file=None,
        stats=Stats(),
        watch=Watch(),
        clock=SystemClock(),
        stop=threading.Event(),
    )
    session = open_session(worker)
    try:
        session.loop._parts.outcomes._outbox.send(Outgoing("flights-done", None, b"v", ()))
    finally:
        session.consumer.close()


def skipped() -> None:
    skip._set_aside(CONFIG.brokers, "failed", 1, "flights", Record("flights", 0, 17, 0, b"k", b"v"))


def redriven() -> None:
    redrive._run(redrive_config.parse_config(document()), "failed", threading.Event())


def backfilled() -> None:
    TopicWriter(backfill_config.parse_config(backfill_document()), "again", None)


@pytest.mark.parametrize(
    ("write", "batch"),
    [(without_policies, 65_536), (skipped, 65_536), (backfilled, 65_536), (redriven, 1_000_000)],
)
def test_size_of_a_record_is_left_to_the_broker(
    write: Callable[[], None], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(settings: dict[str, Any]) -> None:
        raise Made(settings)

    monkeypatch.setattr(module, "Producer", make)
    with pytest.raises(Made) as made:
        write()
    found = made.value.settings
    assert (found.get("message.max.bytes"), found.get("batch.size")) == (module.RECORD_BYTES_MAX, batch)
