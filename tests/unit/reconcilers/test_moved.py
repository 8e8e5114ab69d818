"""Groups whose offsets alone have moved are reconciled when somebody needs it; all other changes queue them at once."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.reconcilers.routing import CALM_SECONDS, Router
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Dispatcher
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store
from tests.support.clock import StillClock

GROUP = ("shop", "orders")


class Queue(Dispatcher):
    """Takes down keys with their delays; None for those that are due at once."""

    def __init__(self) -> None:
        self.queued: list[tuple[Key, float | None]] = []

    def add(self, key: Key) -> None:
        self.queued.append((key, None))

    add_new = add

    def add_after(self, key: Key, delay: float) -> None:
        self.queued.append((key, delay))


def routed(*answers: bool, urgent: bool) -> tuple[list[tuple[Key, float | None]], list[Key]]:
    """Keys that are queued for changes of a group, and the groups that were asked about, with these answers."""
    queue, asked, nobody = Queue(), list[Key](), None
    kube: Any = nobody
    router = Router(Store(kube, StillClock(), ()), (), {CONSUMER_GROUP: queue}, Metrics())

    def ask(answer: bool, group: Key) -> bool:
        asked.append(group)
        return answer

    router.moved += [lambda group, answer=answer: ask(answer, group) for answer in answers]  # type: ignore[misc]
    router.group_changed(GROUP, urgent=urgent)
    return queue.queued, asked


def test_urgent_changes_queue_the_group_at_once_and_ask_nobody() -> None:
    assert routed(False, urgent=True) == ([(GROUP, None)], [])


@pytest.mark.parametrize(
    ("answers", "queued"),
    [
        ((), [(GROUP, CALM_SECONDS)]),
        ((True,), [(GROUP, CALM_SECONDS)]),
        ((False, True), [(GROUP, CALM_SECONDS)]),
        ((False,), []),
        ((False, False), []),
    ],
)
def test_moved_offsets_queue_the_group_if_anybody_needs_it(answers: tuple[bool, ...], queued: list[Any]) -> None:
    found, asked = routed(*answers, urgent=False)
    assert found == queued
    assert asked == [GROUP] * len(answers)
