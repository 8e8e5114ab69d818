"""A executor whose calls move when a test says so: the order in which handlers end is the test's to choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.call import HandlerCall
from fleet_consumer.handlers.executor import Executor, Job
from fleet_consumer.handlers.performing import Outputs, Performer


class ManualExecutor(Executor):
    """Holds what it is given in `jobs` until `finish`."""

    def __init__(self, handle: Callable[[Any], Any], size: int, *, batch: bool = False) -> None:
        performer = Performer(
            handle, batch=batch, decode_key=None, decode_value=None, outputs=Outputs(), timeout_s=None
        )
        super().__init__(performer, size, SystemClock())
        self.jobs: list[Job] = []

    def start(self) -> None:
        """There is no thread."""

    def give(self, job: Job) -> None:
        self.jobs.append(job)
        assert len(self.jobs) <= self.size, "more jobs than calls"

    def calls(self) -> list[HandlerCall]:
        return [HandlerCall(job.records, 0) for job in self.jobs]

    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        hook(*arguments)

    def cancel(self) -> None:
        """Nothing runs on its own."""

    def close(self) -> None:
        """There is no thread."""

    def offsets(self) -> list[list[int]]:
        """The calls under way, by job."""
        return [[record.offset for record in job.records] for job in self.jobs]

    def finish(self, number: int = 0) -> None:
        """Let one job come to its end."""
        job = self.jobs.pop(number)
        job.done(self._performer.perform(job.records), 0.001)
