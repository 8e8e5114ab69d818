"""Members by protocol: coordinator threads with the machine that each protocol needs."""

from __future__ import annotations

import random
from collections.abc import Callable

from fleet_consumer.assignors import Assignor
from fleet_consumer.clock import Clock
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.group.classic.machine import ClassicMachine
from fleet_consumer.group.membership import GroupSettings
from fleet_consumer.net import ConnectionSettings


def classic_member(
    connection: ConnectionSettings,
    settings: GroupSettings,
    assignors: tuple[Assignor, ...],
    *,
    clock: Clock,
    on_news: Callable[[], None],
) -> CoordinatorThread:
    """A member under the classic protocol, not started yet."""
    chance = random.Random()
    machine = ClassicMachine(settings, assignors, lambda: chance.uniform(0.8, 1.2))
    return CoordinatorThread(connection, settings, machine, clock=clock, on_news=on_news)
