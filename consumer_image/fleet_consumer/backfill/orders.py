"""Words between a task and the process of its handler, sent as pickles."""

from __future__ import annotations

from typing import Any, NamedTuple

from fleet_consumer.backfill.slices import Task, TaskReport
from fleet_consumer.backfill.work import Work
from fleet_consumer.contract.backfill_ledger import RunProblem


class Order(NamedTuple):
    """One task's part of a slice. A `bounded` one ends with the time of its work, a piece of a comparison does not."""

    work: Work
    ranges: Task
    bounded: bool = True


class Part(NamedTuple):
    """A part of an order that is done: its report, and its rows column by column; `last` is true for the last one."""

    report: TaskReport
    rows: list[list[Any]]
    last: bool


class Ready(NamedTuple):
    """The handler is imported and set up; or the problem with it."""

    problem: RunProblem | None = None
