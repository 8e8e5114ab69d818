"""The search for partitions that stand although their logs go on, and of which librdkafka reports nothing.

To a broker, a batch with too large a length is the end of its file: it answers no bytes and no error, below the end of
the log. So the leader of a partition that has stood for long is asked about the place itself.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from fleet_consumer.consumer.engine import Engine
from fleet_consumer.consumer.positions import Place
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.record import TopicPartition

SILENT_S: Final = 30.0
"""The time without a record or an end after which a place is asked about, and the least time between two questions."""


class SilentPartitions:
    """The places at which one consumer's partitions stand. Belongs to the user's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The places of the last look, and those that are asked about.
        self._places: Mapping[TopicPartition, Place] = {}
        self._asked: tuple[Ticket[frozenset[TopicPartition]], Mapping[TopicPartition, Place]] | None = None
        self._look_at = float("-inf")

    def look(self, now: float) -> None:
        """Report places at which leaders turned out to fail, and ask about those that are the same as at the last look.

        Not for polls that take no records, in which partitions wait for their reader. Others may wait, too, and a
        question ends at the first of them: chance gives each its turn.
        """
        positions, fetch, settings = self._engine.positions, self._engine.fetch, self._engine.settings
        if positions is None or fetch is None:
            return
        if self._asked is not None and self._asked[0].done:
            (ticket, places), self._asked = self._asked, None
            for part in ticket.result or ():
                fetch.stands(*places[part])
        if now < self._look_at:
            return
        self._look_at = now + SILENT_S
        before, self._places, known = self._places, positions.places(), fetch.unreadable
        stand = [part for part, place in self._places.items() if before.get(part) == place and part not in known]
        if stand and self._asked is None:
            random.shuffle(stand)
            offsets = {part: self._places[part][1] for part in stand}
            ticket = self._engine.group.find_silent(offsets, read_committed=settings.read_committed)
            self._asked = ticket, self._places
