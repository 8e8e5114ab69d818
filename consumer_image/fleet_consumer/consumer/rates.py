"""The rates of the partitions that a consumer owns, for assignors that deal by load (`TakesRates`).

A rate is what arrives in a partition, by its end offsets over time; where ends are unknown, what this consumer reads,
by its positions. Offsets count, not records: in a compacted or a transactional topic a rate is a little too large.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from fleet_consumer.assignors import TakesRates
from fleet_consumer.consumer.engine import Engine
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.record import TopicPartition

HALF_LIFE_S: Final = 60.0
"""The age at which an observation counts half."""
KNOWN_AFTER_S: Final = 30.0
"""The time over which a partition has to be observed before its rate is known."""
SHORTEST_S: Final = 1.0
"""Observations closer than this are one."""
LOOK_EVERY_S: Final = 10.0


@dataclass(slots=True)
class _Observed:
    """An offset, when it was seen, and the weighted mean of the rates up to then, with the sum of its weights."""

    offset: int
    at: float
    rate: float = 0.0
    weight: float = 0.0


class RateEstimator:
    """Rates of offsets that grow: exponentially weighted means. Pure; times are monotonic seconds."""

    def __init__(self) -> None:
        self._observed: dict[TopicPartition, _Observed] = {}

    def observe(self, offsets: Mapping[TopicPartition, int], now: float) -> None:
        """Take offsets as of `now`. One that went back, by a seek or a cut log, begins a new observation."""
        for part, offset in offsets.items():
            seen = self._observed.get(part)
            if seen is None or offset < seen.offset:
                self._observed[part] = _Observed(offset, now)
                continue
            elapsed = now - seen.at
            if elapsed < SHORTEST_S:
                continue
            remains = 0.5 ** (elapsed / HALF_LIFE_S)
            weight = seen.weight * remains + 1 - remains
            rate = (seen.rate * seen.weight * remains + (offset - seen.offset) / elapsed * (1 - remains)) / weight
            self._observed[part] = _Observed(offset, now, rate, weight)

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all other partitions."""
        self._observed = {part: seen for part, seen in self._observed.items() if part in partitions}

    def rates(self) -> dict[TopicPartition, float]:
        """Offsets per second of the partitions that were observed for long enough."""
        enough = 1 - 0.5 ** (KNOWN_AFTER_S / HALF_LIFE_S)
        # A sum of many steps may be off by the last bits.
        return {part: seen.rate for part, seen in self._observed.items() if seen.weight >= enough - 1e-9}


class RateWatch:
    """Observes the owned partitions and reports their rates to assignors. Belongs to the user's thread.

    Ends cost one request to each leader every `LOOK_EVERY_S`, in the background.
    """

    def __init__(self, engine: Engine, takers: tuple[TakesRates, ...]) -> None:
        self._engine = engine
        self._takers = takers
        self._arriving = RateEstimator()
        self._reading = RateEstimator()
        self._lookup: tuple[Ticket[dict[TopicPartition, int]], float] | None = None
        self._look_at = float("-inf")

    def look(self, now: float) -> None:
        """Take ends that have come; every `LOOK_EVERY_S` report rates and ask for ends again."""
        engine, positions = self._engine, self._engine.positions
        if not self._takers or positions is None or engine.manual:
            return
        if self._lookup is not None and self._lookup[0].done:
            ticket, asked_at = self._lookup
            self._lookup = None
            self._arriving.observe(ticket.result or {}, asked_at)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        owned = positions.owned
        self._reading.observe({part: entry.offset for part, entry in positions.committable().items()}, now)
        self._arriving.keep(owned)
        self._reading.keep(owned)
        rates = by_topic({**self._reading.rates(), **self._arriving.rates()})
        for taker in self._takers:
            taker.on_rates(rates)
        if self._lookup is not None:
            self._lookup[0].cancel()
            self._lookup = None
        if owned:
            ends = engine.group.end_offsets(sorted(owned), read_committed=engine.settings.read_committed)
            self._lookup = ends, now


def by_topic(rates: Mapping[TopicPartition, float]) -> dict[str, dict[int, float]]:
    grouped: dict[str, dict[int, float]] = {}
    for (topic, number), rate in rates.items():
        grouped.setdefault(topic, {})[number] = rate
    return grouped
