"""The gate in front of a loop's handlers for partitions whose last owner may have died (`caution`)."""

from __future__ import annotations

from fleet_consumer.record import Run
from fleet_consumer.worker.consume.committing import Committing
from fleet_consumer.worker.consume.notes import Notes
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.pauses import SUSPECT
from fleet_consumer.worker.consume.progress import ConsumeProgress
from fleet_consumer.worker.consume.starts import note_starts


class Care:
    """Holds runs back until their partitions' notes are written, and singles out those that ask for care.

    `at_once` is how many records of a partition the loop may have in hand at once.
    """

    def __init__(self, parts: LoopParts, progress: ConsumeProgress, committing: Committing, *, at_once: int) -> None:
        self._parts = parts
        self._progress = progress
        self.notes = Notes(
            parts.consumer,
            answered=committing.note,
            at_once=at_once,
            careful_s=2 * parts.settings.commit_interval_s,
            clock=parts.clock,
        )

    def admit(self, runs: list[Run]) -> tuple[list[Run], list[Run]]:
        """Runs that ask for care, those with the fewest deaths first, and all others.

        Runs of partitions whose notes cannot be written yet are sought back to, and come again.
        """
        if self.notes.unwritten:
            runs = self._noted(runs)
        careful = self.notes.careful
        if not careful:
            return [], runs
        apart = [run for run in runs if run.topic_partition in careful]
        apart.sort(key=lambda run: self.notes.deaths(self._progress.partitions[run.topic_partition]))
        return apart, [run for run in runs if run.topic_partition not in careful]

    def begin(self) -> None:
        """Write the notes of partitions that are new, as far as these can begin now."""
        if self.notes.unwritten:
            for topic_partition in self.notes.begin(self._progress.partitions):
                self._parts.pauses.resume(topic_partition, SUSPECT)

    def _noted(self, runs: list[Run]) -> list[Run]:
        unwritten, partitions = self.notes.unwritten, self._progress.partitions
        if any(run.topic_partition in unwritten for run in runs):
            note_starts(self._parts.consumer, unwritten, partitions)  # so that one question is asked for all
        self.begin()
        for run in runs:
            if run.topic_partition in unwritten:
                self._parts.consumer.seek(run.topic_partition, run.records[0].offset)
                self._parts.pauses.pause(run.topic_partition, SUSPECT)
        return [run for run in runs if run.topic_partition not in unwritten]
